"""The `predict` task: one output a record, in the records' order, whatever happens to the ring.

Lanes are contiguous runs of the input's own order. A segment is some steps; each rank writes a
segment's outputs of its lanes, lane after lane, to a file of its own, and only then says so in the
segment's collective. A segment that a lost rank broke is done again by the next ring under other
file names. At the end the leader puts the files of the completed segments together, lane by lane.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.config.schema import JobConfig
from edl_horovod.data.plan import DataPlan, lanes_of_rank
from edl_horovod.data.recordio import Reader, Writer
from edl_horovod.data.stream import StepStream
from edl_horovod.errors import OutputError, UserCodeError
from edl_horovod.events import EventLog
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.ring.collectives import catch_failures, sum_grouped
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership import Membership
from edl_horovod.ring.state import RingState
from edl_horovod.ring.world import World

__all__ = ["PredictWork"]

log = logging.getLogger(__name__)

SEGMENT_STEPS = 8
RECORDS_PER_FILE = 65_536
SINGLE_FILE_SUFFIX = ".recordio"
# Wire format of tf.Example, kept as TensorFlow's own message: others read it with nothing of ours.
ID_FEATURE = "id"
OUTPUT_FEATURE = "output"


class PredictWork(Work):
    """Prediction, warm. `state.step` counts segments; the state also knows the ring of each."""

    def __init__(
        self,
        config: JobConfig,
        loaded: LoadedSpec,
        model: keras.Model,
        *,
        stream: StepStream,
        plan: DataPlan,
        events: EventLog,
    ) -> None:
        """Trace the model.

        Args:
            config: The job.
            loaded: The user's spec.
            model: Built, with the trained weights.
            stream: Of the input, in `Mode.PREDICTION`.
            plan: Of the input, not shuffled.
            events: Told of the progress by the leader.
        """
        self._config = config
        self._loaded = loaded
        self._model = model
        self._stream = stream
        self._plan = plan
        self._events = events
        self._num_segments = -(-plan.steps_per_epoch // SEGMENT_STEPS)
        self._sizes = tf.Variable(np.zeros(self._num_segments, np.int64))
        self._folder = Path(config.job_dir) / "segments"
        self._order = plan.order(0)
        features, _ = stream.element_spec
        with user_code(f"Running the model of {type(loaded.spec).__name__}", root=loaded.zoo):
            self._outputs = tf.function(
                lambda features: self._model(features, training=False), autograph=False
            ).get_concrete_function(features)
        self._reduce = tf.function(
            lambda flag: sum_grouped([flag], "edl.predict")[0], autograph=False
        ).get_concrete_function(tf.TensorSpec((), tf.float32))
        self.state = RingState([self._sizes])

    def records_seen(self) -> int:
        """Records of the segments that are done."""
        return self._plan.records_seen(self._segment_steps(self.state.step).start)

    def run(self, world: World, membership: Membership) -> bool:
        """Predict segment after segment."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lanes = world.lanes(self._plan.num_lanes)
        first_step = self._segment_steps(self.state.step).start
        self._stream.restart(lanes, first_step, self._plan.steps_per_epoch)
        while self.state.step < self._num_segments:
            self._write_segment(self.state.step, lanes, world)
            wants_change = float(membership.wants_change())
            if not world.is_alone:
                with catch_failures():
                    # All ranks: each has written its file of this segment.
                    wants_change = float(self._reduce(tf.constant(wants_change)))
            self._sizes.scatter_nd_update([[self.state.step]], [world.size])
            self.state.commit()
            membership.progress(self.state.step)
            if world.is_leader:
                self._events.write(
                    "progress", records=self.records_seen(), total_records=self._plan.num_records,
                    size=world.size,
                )  # fmt: skip
            if wants_change > 0:
                return False
        return True

    def finish(self, world: World) -> dict[str, Any]:
        """Put the output together; the others wait, and take over if the leader is lost."""
        output = Path(self._config.output)
        if world.is_leader:
            partial = output.with_name(f".{output.name}.partial")
            _remove(partial)
            if output.name.endswith(SINGLE_FILE_SUFFIX):
                _write_records(partial, self._all_outputs())
            else:
                self._write_folder(partial)
            _remove(output)
            partial.rename(output)
            shutil.rmtree(self._folder, ignore_errors=True)
        if not world.is_alone:
            with catch_failures():
                self._reduce(tf.constant(0.0))  # All ranks: each has done the last segment.
        return {"steps": self._plan.steps_per_epoch, "metrics": {}, "output": str(output)}

    def _segment_steps(self, segment: int) -> range:
        last = self._plan.steps_per_epoch
        first = min(max(segment, 0) * SEGMENT_STEPS, last)
        return range(first, min(first + SEGMENT_STEPS, last))

    def _path(self, segment: int, rank: int, size: int) -> Path:
        return self._folder / f"{segment:08d}-{rank:04d}-of-{size:04d}.recordio"

    def _write_segment(self, segment: int, lanes: range, world: World) -> None:
        by_lane: dict[int, list[bytes]] = {lane: [] for lane in lanes}
        for step in self._segment_steps(segment):
            batch = self._stream.next_batch()
            ids = [self._order.records(step, range(lane, lane + 1)) for lane in lanes]
            count = sum(map(len, ids))
            found = 0 if batch is None else batch.num_examples
            if found != count:
                raise UserCodeError(
                    f"create_dataset of {type(self._loaded.spec).__name__} must give one example "
                    f"for each record in mode prediction. Received: {found} examples of {count} "
                    f"records in step {step}. Filter or expand records only in the other modes."
                )
            if batch is not None:
                records = iter(_examples(np.concatenate(ids), self._outputs(batch.features)))
                for lane, lane_ids in zip(lanes, ids, strict=True):
                    by_lane[lane].extend(next(records) for _ in lane_ids)
        lines = (record for lane in lanes for record in by_lane[lane])
        _write_records(self._path(segment, world.rank, world.size), lines)

    def _all_outputs(self) -> Iterator[bytes]:
        """All outputs in the order of the input: lane by lane, each through all segments."""
        sizes = self._sizes.numpy().tolist()
        for lane in range(self._plan.num_lanes):
            for segment, size in enumerate(sizes):
                yield from self._lane_outputs(lane, segment, size)

    def _lane_outputs(self, lane: int, segment: int, size: int) -> Iterator[bytes]:
        steps = self._segment_steps(segment)
        for rank in range(size):
            lanes = lanes_of_rank(rank, size, self._plan.num_lanes)
            if lane not in lanes:
                continue
            counts = [
                sum(len(self._order.records(step, range(at, at + 1))) for step in steps)
                for at in lanes
            ]
            start = sum(counts[: lane - lanes.start])
            wanted = range(start, start + counts[lane - lanes.start])
            if wanted:
                with Reader.open(str(self._path(segment, rank, size))) as reader:
                    yield from reader.read_batch(wanted)

    def _write_folder(self, folder: Path) -> None:
        folder.mkdir()
        total = self._plan.num_records
        num_files = -(-total // RECORDS_PER_FILE)
        outputs = self._all_outputs()
        for number in range(num_files):
            name = f"part-{number:05d}-of-{num_files:05d}.recordio"
            count = min(RECORDS_PER_FILE, total - number * RECORDS_PER_FILE)
            _write_records(folder / name, (next(outputs) for _ in range(count)))


def _write_records(path: Path, records: Iterator[bytes]) -> None:
    with Writer(path) as writer:
        for record in records:
            writer.write(record)


def _remove(path: Path) -> None:
    """Remove an output of this job, a file or a folder of part files; nothing else."""
    if path.is_dir():
        if any(not child.name.startswith(("part-", ".part-")) for child in path.iterdir()):
            raise OutputError(
                f"{path} holds files that are no predictions. Choose another output directory."
            )
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _examples(ids: np.ndarray, outputs: Any) -> Iterator[bytes]:
    """One serialized tf.Example a record: its number as `id`, each output by its name."""
    named = outputs if isinstance(outputs, dict) else {OUTPUT_FEATURE: outputs}
    arrays = {name: np.asarray(value) for name, value in sorted(named.items())}
    for place, record_id in enumerate(ids.tolist()):
        feature = {ID_FEATURE: _int64s([record_id])}
        for name, array in arrays.items():
            values = np.ravel(array[place])
            make = _int64s if np.issubdtype(array.dtype, np.integer) else _floats
            feature[name] = make(values.tolist())
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        # Maps have no order of their own; equal inputs give equal files.
        yield example.SerializeToString(deterministic=True)


def _int64s(values: list[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: list[float]) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
