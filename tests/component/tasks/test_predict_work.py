"""The work of `predict` rank by rank in one process, through rings that change, without Horovod."""

import contextlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config.schema import JobConfig, TrainConfig
from edl_horovod.errors import ConfigError, DataError, OutputError, UserCodeError
from edl_horovod.files import marker
from edl_horovod.files.output_dir import staged
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog, read
from edl_horovod.models import zoo
from edl_horovod.records.reader import Reader
from edl_horovod.ring.membership.base import Membership
from edl_horovod.spec import Mode
from edl_horovod.tasks import predict as module
from edl_horovod.tasks.opening import Opening, Trained
from edl_horovod.tasks.predict import SEGMENT_STEPS, PredictWork
from tests.later import LATER
from tests.records import write_records

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.framework import FRAMEWORK

NUM_RECORDS, BATCH, NUM_LANES = 1000, 16, 16
NUM_SEGMENTS = -(-NUM_RECORDS // (BATCH * SEGMENT_STEPS))

MODEL_FILE = """
import keras, tensorflow as tf
from edl_horovod import ElasticDLSpec, Mode

class Spec(ElasticDLSpec):
    def create_model(self):
        x = keras.Input(shape=(4,), name="x")
        total = keras.ops.sum(x, axis=1, keepdims=True)
        return keras.Model({"x": x}, {"total": total, "twice": keras.layers.Reshape((2, 2))(x)})

    def create_dataset(self, dataset, mode):
        features = {"x": tf.io.FixedLenFeature([4], tf.float32)}
        return dataset.map(lambda record: tf.io.parse_single_example(record, features))

    def create_loss(self, outputs, labels): ...
    def create_optimizer(self): ...
"""
PROCESSOR = """
CALLS = []
class PredictionOutputsProcessor:
    def process(self, predictions, worker_id, record_ids=None):
        CALLS.append((worker_id, record_ids.tolist(), predictions["total"].numpy()))
"""


@dataclass(frozen=True, kw_only=True)
class RankAlone(World):
    """A rank of a ring whose others run at another time: there is nobody to reduce with."""

    @property
    def is_alone(self) -> bool:
        return True


class Until(Membership):
    """Wants the ring to change after some segments."""

    def __init__(self, last_segment: int) -> None:
        super().__init__(None)
        self._left = last_segment

    def join(self, step: int) -> World:
        raise NotImplementedError

    def wants_change(self) -> bool:
        self._left -= 1
        return self._left == 0

    def failed(self, failure: CollectiveFailed, step: int) -> None:
        raise NotImplementedError


@pytest.fixture
def make_work(tmp_path, monkeypatch):
    """Make the work of one rank; keywords change the config."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    data = write_records(tmp_path / "data", NUM_RECORDS)
    zoo_folder = tmp_path / "zoo"
    zoo_folder.mkdir()
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(EventLog(tmp_path / "events.jsonl", "test"))

        def make(code: str = MODEL_FILE, **settings: str) -> PredictWork:
            name = f"m{len(list(zoo_folder.iterdir()))}"
            (zoo_folder / f"{name}.py").write_text(code)
            config = JobConfig(
                task="predict",
                data=data,
                trained_model="m",
                output=str(tmp_path / "out"),
                job_dir=str(tmp_path / "job"),
                train=TrainConfig(batch_size=BATCH),
            )
            config = replace(config, **settings)
            loaded = zoo.load_spec(str(zoo_folder), f"{name}.Spec", params={})
            opening = Opening(config, FRAMEWORK, events, stack)
            opened = opening.data(config.data, loaded, Mode.PREDICTION)
            model = FRAMEWORK.model(loaded, opened.batches.element_spec)
            make.trained = trained = Trained(loaded, model, opened)
            work = PredictWork(config, trained, FRAMEWORK.collectives, events)
            work.state.counters.step = 0
            return work

        yield make


def run_ring(work: PredictWork, *, size: int, num_segments: int, lost_rank: int = -1) -> None:
    """Be all ranks of a ring, one after the other, for some segments and the one begun then."""
    start, sizes = work.state.step, work.state.variables["sizes"].numpy()
    for rank in range(size):
        work.state.counters.step = start
        work.state.variables["sizes"].assign(sizes)
        world = RankAlone(rank=rank, size=size, generation=1)
        if rank != lost_rank:
            work.run(world, Until(num_segments))
    if lost_rank >= 0:
        work.state.counters.step = start
        work.state.variables["sizes"].assign(sizes)


LEADER = RankAlone(rank=0, size=1, generation=9)


def records_of(output: Path) -> list[bytes]:
    with Reader.open(str(output)) as reader:
        return list(reader)


@pytest.mark.further
def test_rings_that_change_and_break_give_the_records_of_one_rank(make_work, tmp_path):
    serial = make_work(output=str(tmp_path / "serial"), job_dir=str(tmp_path / "serial.job"))
    run_ring(serial, size=1, num_segments=NUM_SEGMENTS)
    serial.finish(LEADER)

    work = make_work()
    run_ring(work, size=3, num_segments=2)
    run_ring(work, size=4, num_segments=1, lost_rank=0)  # Some wrote, and it counts for nothing.
    run_ring(work, size=2, num_segments=3)
    run_ring(work, size=5, num_segments=NUM_SEGMENTS)
    work.finish(LEADER)

    assert records_of(tmp_path / "out") == records_of(tmp_path / "serial")
    assert (tmp_path / "out" / "schema.json").read_text() == (
        tmp_path / "serial" / "schema.json"
    ).read_text()


def test_an_output_folder_holds_parts_and_a_schema_that_reads_them(
    make_work, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "RECORDS_PER_FILE", 400)
    work = make_work()
    run_ring(work, size=1, num_segments=NUM_SEGMENTS)
    result = work.finish(LEADER)

    output = tmp_path / "out"
    assert sorted(path.name for path in output.iterdir()) == [
        marker.NAME,
        *(f"part-0000{n}-of-00003.recordio" for n in range(3)),
        "schema.json",
    ]
    assert result.output == str(output)
    assert not list((tmp_path / "job").iterdir())
    schema = json.loads((output / "schema.json").read_text())
    dtypes = {"float_list": tf.float32, "int64_list": tf.int64}
    features = {
        name: tf.io.FixedLenFeature(feature["shape"], dtypes[feature["list"]])
        for name, feature in schema["features"].items()
    }
    parsed = tf.io.parse_example(records_of(output), features)
    assert parsed["id"].numpy().tolist() == list(range(schema["num_records"]))
    np.testing.assert_allclose(
        tf.reduce_sum(parsed["twice"], [1, 2]), parsed["total"][:, 0], atol=1e-5
    )


@pytest.mark.long
def test_a_single_file_has_its_schema_beside_it(make_work, tmp_path):
    work = make_work(output=str(tmp_path / "all.recordio"))
    run_ring(work, size=2, num_segments=NUM_SEGMENTS)
    work.finish(LEADER)
    assert len(records_of(tmp_path / "all.recordio")) == NUM_RECORDS
    schema = json.loads((tmp_path / "all.recordio.schema.json").read_text())
    assert list(schema["features"]) == ["id", "total", "twice"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".all.recordio{marker.NAME}",
        "all.recordio",
        "all.recordio.schema.json",
        "data",
        "events.jsonl",
        "job",
        "zoo",
    ]


def test_the_next_leader_finishes_what_a_lost_one_began(make_work, tmp_path):
    work = make_work()
    run_ring(work, size=1, num_segments=NUM_SEGMENTS)
    with marker.work_folder(tmp_path / "out") as left:  # As a leader that was killed leaves it.
        shutil.copytree(left, tmp_path / "left")
    (tmp_path / "left").rename(left)
    (tmp_path / "job" / "segments" / "lanes-12345").mkdir()
    work.finish(LEADER)
    first = records_of(tmp_path / "out")
    work.finish(LEADER)  # The one before was lost after all was in place.
    assert records_of(tmp_path / "out") == first
    assert not list(tmp_path.glob("out.*"))
    assert len([e for e in read(tmp_path / "events.jsonl") if e.event.kind == "log"]) == 1


def test_what_another_job_put_in_the_output_s_place_meanwhile_stays(make_work, tmp_path):
    work = make_work()
    run_ring(work, size=1, num_segments=NUM_SEGMENTS)
    with staged(tmp_path / "out", "trained model", overwrite=False, job="/b.job") as folder:
        (folder / "trained_model.pb").write_text("another job's")
    with pytest.raises(OutputError, match="earlier result"):
        work.finish(LEADER)
    assert (tmp_path / "out" / "trained_model.pb").read_text() == "another job's"


def test_what_is_wrong_with_the_first_records_says_once_what_was_received(make_work, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"x": 1, "y": 1}\n{"x": 2}\n')
    code = MODEL_FILE.replace("tf.io.parse_single_example(record, features)", "record")
    with pytest.raises(DataError) as caught:
        make_work(code, data=str(tmp_path / "x.jsonl"))
    error = caught.value
    assert str(error).count("Received: ") == 1
    assert set(error.received) == {"path", "data"}
    assert str(error).count("data_plan.columns") == 1


def test_a_full_disk_leaves_the_older_output_and_the_segments(make_work, tmp_path, monkeypatch):
    work = make_work(overwrite=True)
    run_ring(work, size=1, num_segments=NUM_SEGMENTS)
    with staged(tmp_path / "out", "predictions", overwrite=False) as folder:
        (folder / "part-00000-of-00001.recordio").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(OutputError, match="space left"):
        work.finish(LEADER)
    assert [path.read_text() for path in (tmp_path / "out").glob("part-*")] == ["old"]
    assert (tmp_path / "job" / "segments").is_dir()


@pytest.mark.long
def test_a_processor_gets_every_batch_in_order_within_a_lane(make_work):
    run_ring(make_work(MODEL_FILE + PROCESSOR), size=2, num_segments=NUM_SEGMENTS)
    calls = make_work.trained.loaded.module.CALLS
    ids = [record for _, records, _ in calls for record in records]
    assert sorted(ids) == list(range(NUM_RECORDS))
    assert {worker for worker, _, _ in calls} == {0, 1}
    for start, stop in map(make_work.trained.data.plan.lane_bounds, range(NUM_LANES)):
        lane = [record for record in ids if start <= record < stop]
        assert lane == sorted(lane)
    assert all(len(records) == len(totals) for _, records, totals in calls)


def test_a_processor_takes_the_place_of_an_output(make_work, tmp_path):
    work = make_work(MODEL_FILE + PROCESSOR, output="")
    run_ring(work, size=1, num_segments=NUM_SEGMENTS)
    assert work.finish(LEADER).output == ""
    assert make_work.trained.loaded.module.CALLS
    assert not (tmp_path / "job").exists()


def test_a_processor_of_two_parameters_is_called_with_two(make_work):
    two = PROCESSOR.replace(", record_ids=None", "").replace("record_ids.tolist()", "None")
    run_ring(make_work(MODEL_FILE + two), size=1, num_segments=1)
    assert len(make_work.trained.loaded.module.CALLS) == 2 * SEGMENT_STEPS


def test_neither_output_nor_processor_is_refused(make_work):
    with pytest.raises(ConfigError, match=r"no\s+PredictionOutputsProcessor"):
        make_work(output="")


def test_a_processor_without_process_is_refused(make_work):
    code = "\nclass PredictionOutputsProcessor:\n    def handle(self): ...\n"
    with pytest.raises(UserCodeError, match=r"process\(self,"):
        make_work(MODEL_FILE + code)


@pytest.mark.further
def test_what_a_processor_raises_names_its_line(make_work):
    code = "\nclass PredictionOutputsProcessor:\n    def process(self, predictions): 1 / 0\n"
    work = make_work(MODEL_FILE + code)
    with pytest.raises(UserCodeError, match=r"m0\.py:\d+: ZeroDivisionError"):
        run_ring(work, size=1, num_segments=1)


def test_a_dataset_that_filters_is_refused(make_work):
    code = MODEL_FILE.replace("features))", "features)).filter(lambda e: e['x'][0] > 0)")
    work = make_work(code)
    with pytest.raises(UserCodeError, match="one example"):
        run_ring(work, size=1, num_segments=1)
