"""The `predict` task: one output a record, in the records' order, whatever happens to the ring.

A rank predicts the steps of a segment on its lanes, passes the outputs to the user's processor, and
writes them to a file of its own, lane after lane. Only then it enters the segment's collective. If
a rank is lost, the next ring repeats the segment, under other file names if its size is different.
At the end the leader reads each file once, splits it into one file for each lane, and joins these.

Two steps are computed concurrently, because a single one does not keep all cores busy.
"""

import collections
import contextlib
import itertools
import os
import shutil
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import UserCodeError
from edl_horovod.files.output_dir import SINGLE_FILE_SUFFIX, staged
from edl_horovod.files.whole_file import write_json
from edl_horovod.frameworks.base import Collectives, Framework
from edl_horovod.frameworks.values import Array
from edl_horovod.frameworks.world import World
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, LogEvent
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.outcome import Success
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.parts import no_place_for_outputs
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.chunks import Codec
from edl_horovod.records.plan import DataPlan, Ids, lanes_of_rank
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Writer
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import Counters, RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.examples import ExampleEncoder, require_encodable
from edl_horovod.tasks.opening import Opening, Trained
from edl_horovod.tasks.progress import report_records

SEGMENT_STEPS = 8
"""Number of steps between two collectives; a lost rank costs at most two segments."""
LANES_AT_ONCE = 256
"""Lanes that are split in one pass over the files; limits the number of open files."""
_LENGTH = struct.Struct("<I")
RECORDS_PER_FILE = 65_536
SCHEMA_FILE = "schema.json"
STEPS_AT_ONCE = 2
"""Each holds a batch and its outputs in memory; more were not faster on two cores."""


class Segments:
    """The files with the outputs of each segment and rank, in a folder of the job."""

    def __init__(self, job_dir: JobDir, plan: DataPlan) -> None:
        """Prepare; `begin` creates the folder.

        Args:
            job_dir: The job's directory, which all ranks see.
            plan: The plan of the input, not shuffled: each lane is a run of consecutive records.
        """
        self._folder, self._discarded = job_dir.segments, job_dir.discarded_segments
        self._plan = plan
        self.num_segments = -(-plan.steps_per_epoch // SEGMENT_STEPS)

    def steps(self, segment: int) -> range:
        """The steps of a segment; none after the last segment."""
        last = self._plan.steps_per_epoch
        first = min(segment * SEGMENT_STEPS, last)
        return range(first, min(first + SEGMENT_STEPS, last))

    def num_records(self, lane: int, steps: range) -> int:
        """Number of records of a lane in some steps."""
        start, stop = self._plan.lane_bounds(lane)
        lane_batch, length = self._plan.lane_batch, stop - start
        return min(steps.stop * lane_batch, length) - min(steps.start * lane_batch, length)

    def begin(self) -> None:
        """Create the folder, if it does not exist yet."""
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def exist(self) -> bool:
        """Whether any rank has called `begin`, and none `discard`."""
        return self._folder.is_dir()

    def discard(self) -> None:
        """Remove all files; the folder is first renamed, so `exist` changes at once."""
        shutil.rmtree(self._discarded, ignore_errors=True)
        self._folder.rename(self._discarded)
        shutil.rmtree(self._discarded, ignore_errors=True)

    def write(
        self, segment: int, by_lane: Sequence[Sequence[bytes]], *, rank: int, size: int
    ) -> None:
        """Write a rank's outputs of a segment; may replace a file with the same content.

        Args:
            segment: The number of the segment, from 0.
            by_lane: The outputs of each of this rank's lanes.
            rank: This rank.
            size: The size of the ring.

        Raises:
            OutputError: The disk is full or gone.
        """
        with Writer(self._path(segment, rank, size), codec=Codec.NONE) as writer:
            for record in itertools.chain.from_iterable(by_lane):
                writer.write(record)

    def in_order(self, sizes: Sequence[int]) -> Iterator[bytes]:
        """All outputs in the order of the input.

        Args:
            sizes: The size of the ring that did each segment.

        Raises:
            DataError: A file is missing or damaged.
            OSError: The disk is full or gone.
        """
        num_lanes = self._plan.num_lanes
        # Used by this process only: a former leader that hung may still write to its own folder.
        folder = self._folder / f"lanes-{os.getpid()}"
        for first in range(0, num_lanes, LANES_AT_ONCE):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            lanes = range(first, min(first + LANES_AT_ONCE, num_lanes))
            paths = {lane: folder / f"{lane:06d}" for lane in lanes}
            self._split(paths, sizes)
            for path in paths.values():
                yield from _read_framed(path)

    def _split(self, paths: Mapping[int, Path], sizes: Sequence[int]) -> None:
        """Write the outputs of some lanes to a file for each lane."""
        with contextlib.ExitStack() as stack:
            streams: Mapping[int, BinaryIO] = {
                lane: stack.enter_context(path.open("wb")) for lane, path in paths.items()
            }
            for segment, size in enumerate(sizes):
                for rank in range(size):
                    self._split_file(streams, segment, rank, size)

    def _split_file(
        self, streams: Mapping[int, BinaryIO], segment: int, rank: int, size: int
    ) -> None:
        """Append the records of a rank's file to the streams of their lanes; skip other lanes."""
        lanes = lanes_of_rank(rank, size, self._plan.num_lanes)
        counts = {lane: self.num_records(lane, self.steps(segment)) for lane in lanes}
        if not any(count for lane, count in counts.items() if lane in streams):
            return
        with Reader.open([str(self._path(segment, rank, size))], cache_bytes=1) as reader:
            records = iter(reader)
            for lane, count in counts.items():
                of_lane = itertools.islice(records, count)
                if lane in streams:
                    streams[lane].writelines(_LENGTH.pack(len(r)) + r for r in of_lane)
                else:
                    collections.deque(of_lane, maxlen=0)

    def _path(self, segment: int, rank: int, size: int) -> Path:
        return self._folder / f"{segment:08d}-{rank:04d}-of-{size:04d}.recordio"


def _read_framed(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while length := stream.read(_LENGTH.size):
            yield stream.read(_LENGTH.unpack(length)[0])


class Processor:
    """The user's processor of outputs on a rank, created once and called for each batch."""

    def __init__(self, kind: type, loaded: LoadedSpec) -> None:
        """Create the user's object.

        Raises:
            UserCodeError: Its constructor raised an exception.
        """
        self._zoo = loaded.zoo
        self._label = f"{kind.__name__} of {loaded.source_file}"
        with user_code(f"Creating {self._label}", root=loaded.zoo):
            self._object = call_declared(kind, {})

    def process(
        self, predictions: Any, *, worker_id: int, record_ids: npt.NDArray[np.int64]
    ) -> None:
        """Call the user's method for a batch, with the arguments that it declares.

        Args:
            predictions: The outputs of the model.
            worker_id: This rank.
            record_ids: Numbers of the records in the input, in the order of the predictions.

        Raises:
            UserCodeError: It raised an exception.
        """
        available = {"predictions": predictions, "worker_id": worker_id, "record_ids": record_ids}
        with user_code(f"process of {self._label}", root=self._zoo):
            call_declared(self._object.process, available)


def make_warm(
    config: JobConfig,
    framework: Framework,
    events: EventLog,
    _: WorkerIdentity,
    stack: contextlib.ExitStack,
) -> Work:
    """Load the trained model and open the input; see `tasks.warm`."""
    trained = Opening(config, framework, events, stack).trained(Mode.PREDICTION)
    return PredictWork(config, trained, framework.collectives, events)


@dataclass(frozen=True)
class _Predicted:
    """A rank's part of one step, possibly still being computed."""

    step: int
    ids: Ids
    """Ids of its records; empty if the rank has no records in the step."""
    outputs: Future[Any]
    """The outputs of the model; the result is None if there are no records."""


class PredictWork(Work):
    """The work of a prediction; its state is the number of segments, and each one's ring size."""

    def __init__(
        self, config: JobConfig, trained: Trained, collectives: Collectives, events: EventLog
    ) -> None:
        """Create the user's processor; `trained` has the input in `Mode.PREDICTION`.

        Raises:
            ConfigError: There is neither an output nor a processor.
            UserCodeError: The processor raised, or records cannot hold the outputs.
        """
        self._config = config
        self._loaded = loaded = trained.loaded
        self._name, self._events = loaded.label, events
        self._batches, self._plan = trained.data.batches, trained.data.plan
        self._segments = Segments(JobDir.of(config), self._plan)
        self._sizes = Array(np.zeros(self._segments.num_segments, np.int64))
        kind = loaded.outputs_processor
        self._processor = None if kind is None else Processor(kind, loaded)
        if not config.output and self._processor is None:
            raise no_place_for_outputs(loaded.source_file)
        self._prediction = trained.model.prediction(self._batches.element_spec)
        self._encoder: ExampleEncoder | None = None
        if config.output:
            outputs = self._prediction.describe()
            require_encodable(outputs, model=self._name)
            self._encoder = ExampleEncoder(outputs)
        self._collectives = collectives
        self.state = RingState({"sizes": self._sizes}, Counters(), collectives)

    def records_seen(self) -> int:
        """Records of the segments that are done."""
        return self._plan.records_seen(self._segments.steps(max(0, self.state.step)).start)

    def run(self, world: World, membership: Membership) -> bool:
        """Predict segment after segment."""
        num_segments = self._segments.num_segments
        if self.state.step >= num_segments:
            return True
        if self._encoder is not None:
            self._segments.begin()
        lanes = world.lanes(self._plan.num_lanes)
        first_step = self._segments.steps(self.state.step).start
        self._batches.restart(lanes, first_step, self._plan.steps_per_epoch)
        # A segment is written while the next one is computed.
        with (
            membership.doing("works", "between two segments", "between"),
            ThreadPoolExecutor(STEPS_AT_ONCE, thread_name_prefix="predict") as predicting,
            ThreadPoolExecutor(1, thread_name_prefix="write") as writing,
        ):
            predicted = self._predict(first_step, predicting, membership)
            waiting: deque[Future[None]] = deque()
            wants_change = False
            for segment in range(self.state.step, num_segments):
                with membership.doing("works", f"segment {segment}", "computing"):
                    steps = itertools.islice(predicted, len(self._segments.steps(segment)))
                    waiting.append(self._start_segment(segment, steps, lanes, world, writing))
                if len(waiting) > 1:
                    wants_change = self._complete_segment(waiting.popleft(), world, membership)
                if wants_change:
                    break
            while waiting:
                self._complete_segment(waiting.popleft(), world, membership)
        return self.state.step >= num_segments

    def finish(self, world: World) -> Success:
        """Join the output on the leader; the others wait, and repeat it if the leader is lost."""
        if world.is_leader and self._encoder is None:
            message = (
                f"{self._plan.num_records:,} predictions went to the PredictionOutputsProcessor"
            )
            self._events.write(LogEvent(message=message))
        # If the segments are gone, a former leader has completed the output.
        if world.is_leader and self._encoder is not None and self._segments.exist:
            self._write_output(Path(self._config.output), self._encoder)
            self._segments.discard()
        if not world.is_alone:
            # All ranks call it: each has done the last segment.
            self._collectives.sum(np.zeros(()), "edl.predict")
        steps = self._plan.steps_per_epoch
        return Success(steps=steps, metrics={}, output=self._config.output)

    def _predict(
        self, first_step: int, predicting: ThreadPoolExecutor, membership: Membership
    ) -> Iterator[_Predicted]:
        """Yield the steps in order, while the following ones are computed in threads."""
        ahead: deque[_Predicted] = deque()
        for step in range(first_step, self._plan.steps_per_epoch):
            with membership.doing("works", f"examples of step {step}", "input"):
                batch = self._batches.next_batch()
            ids = self._batches.record_ids
            self._require_one_each(step, ids, 0 if batch is None else batch.num_examples)
            features = None if batch is None else batch.features
            ahead.append(_Predicted(step, ids, predicting.submit(self._call_model, features)))
            if len(ahead) > STEPS_AT_ONCE:
                yield ahead.popleft()
        yield from ahead

    def _call_model(self, features: Any) -> Any:
        if features is None:
            return None
        with user_code(f"Running the model of {self._name}", root=self._loaded.zoo):
            return self._prediction.outputs(features)

    def _start_segment(
        self,
        segment: int,
        steps: Iterator[_Predicted],
        lanes: range,
        world: World,
        writing: ThreadPoolExecutor,
    ) -> Future[None]:
        """Compute a segment; the future completes when this rank's file of it is written."""
        encoded: list[tuple[int, Future[list[bytes]]]] = []
        for predicted in steps:
            ids, outputs = predicted.ids, predicted.outputs.result()
            if outputs is None:
                continue
            if self._processor is not None:
                self._processor.process(outputs, worker_id=world.rank, record_ids=ids)
            if self._encoder is not None:
                records = writing.submit(self._encode, self._encoder, ids, outputs)
                encoded.append((predicted.step, records))

        def write() -> None:
            if self._encoder is not None:
                by_lane = self._by_lane(
                    lanes, [(step, records.result()) for step, records in encoded]
                )
                self._segments.write(segment, by_lane, rank=world.rank, size=world.size)

        return writing.submit(write)

    def _encode(self, encoder: ExampleEncoder, ids: Ids, outputs: Any) -> list[bytes]:
        return encoder.encode(ids, self._prediction.arrays(outputs))

    def _complete_segment(
        self, written: Future[None], world: World, membership: Membership
    ) -> bool:
        """Count a segment as done on all ranks; returns whether the ring must change."""
        with membership.doing("works", f"writing segment {self.state.step}", "writing"):
            written.result()
        wants_change = float(membership.wants_change())
        if not world.is_alone:
            with membership.doing("waits", f"segment {self.state.step}", "exchange"):
                # All ranks call it: each has done its part of this segment.
                wants_change = float(self._collectives.sum(np.asarray(wants_change), "edl.predict"))
        sizes = self._sizes.numpy().copy()
        sizes[self.state.step] = world.size
        self._sizes.assign(sizes)
        self.state.commit()
        membership.progress(self.state.step)
        report_records(self._events, world, self.records_seen(), self._plan.num_records)
        return wants_change > 0

    def _require_one_each(self, step: int, ids: npt.NDArray[np.int64], num_examples: int) -> None:
        if num_examples != len(ids):
            raise UserCodeError(
                f"create_dataset of {self._name} must give one example for each record in mode"
                " prediction.",
                received=f"{num_examples} examples of {len(ids)} records in step {step}",
                hint="Filter or expand records only in the other modes.",
            )

    def _by_lane(self, lanes: range, by_step: list[tuple[int, list[bytes]]]) -> list[list[bytes]]:
        """Regroup records from step after step to lane after lane."""
        by_lane: list[list[bytes]] = [[] for _ in lanes]
        for step, records in by_step:
            rest = iter(records)
            for lane, records_of_lane in zip(lanes, by_lane, strict=True):
                count = self._segments.num_records(lane, range(step, step + 1))
                records_of_lane.extend(itertools.islice(rest, count))
        return by_lane

    def _write_output(self, output: Path, encoder: ExampleEncoder) -> None:
        is_file = output.name.endswith(SINGLE_FILE_SUFFIX)
        outputs = self._segments.in_order(self._sizes.numpy().tolist())
        schema = encoder.schema(self._plan.num_records)
        config = self._config
        with staged(
            output, "predictions", overwrite=config.overwrite, is_file=is_file, job=config.job_dir
        ) as staged_output:
            if is_file:
                _write_records(staged_output, outputs)
                write_json(staged_output.with_name(f"{staged_output.name}.{SCHEMA_FILE}"), schema)
            else:
                self._write_parts(staged_output, outputs)
                write_json(staged_output / SCHEMA_FILE, schema)
        total = self._plan.num_records
        self._events.write(LogEvent(message=f"{total:,} predictions are in {output}"))

    def _write_parts(self, folder: Path, outputs: Iterator[bytes]) -> None:
        num_files = -(-self._plan.num_records // RECORDS_PER_FILE)
        for number in range(num_files):
            name = f"part-{number:05d}-of-{num_files:05d}{SINGLE_FILE_SUFFIX}"
            _write_records(folder / name, itertools.islice(outputs, RECORDS_PER_FILE))


def _write_records(path: Path, records: Iterator[bytes]) -> None:
    with Writer(path) as writer:
        for record in records:
            writer.write(record)
