"""Checkpoints: when one is written, which one is read, and what is refused."""

import os
import threading

import numpy as np
import pytest

from edl_horovod.config.schema import CheckpointConfig
from edl_horovod.errors import ConfigError, DataError
from edl_horovod.frameworks.values import Array
from edl_horovod.job import checkpoint_files, events
from edl_horovod.job.events import EventLog
from edl_horovod.ring import checkpoint
from edl_horovod.ring.checkpoint import Checkpoints, write_tensors

FACTS = {"train.batch_size": 24, "data": "abc"}


@pytest.fixture
def log(tmp_path):
    with EventLog(tmp_path / "events.jsonl", "test") as event_log:
        yield event_log


@pytest.fixture
def make(tmp_path, log):
    """Checkpoints over a variable of its own: `make(value=1.0, every_steps=5)`."""

    def make_one(
        value=0.0, *, facts=FACTS, must_exist=False, shape=(2,), dtype=np.float32, **config
    ):
        variable = Array(np.full(shape, value, dtype))
        config = {"every_steps": 5, "every_seconds": 0.0, **config}
        checkpoints = Checkpoints(
            tmp_path / "checkpoints",
            {"kernel": variable},
            facts=facts,
            config=CheckpointConfig(**config),
            must_exist=must_exist,
            events=log,
        )
        return checkpoints, variable

    return make_one


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def train(checkpoints, variable, steps):
    for step in steps:
        variable.assign(np.full(variable.shape, step, np.float32))
        checkpoints.after_step({"step": step, "evaluated_step": step - 1})
        checkpoints.wait()


def steps(tmp_path):
    return checkpoint_files.steps_in(tmp_path / "checkpoints")


def damage(tmp_path, step):
    path = checkpoint_files.path_of(tmp_path / "checkpoints", step)
    os.truncate(path, path.stat().st_size - 3)


def recorded(tmp_path, state):
    log = [line.event for line in events.read(tmp_path / "events.jsonl")]
    return [event for event in log if event.kind == "checkpoint" and event.state == state]


def steps_in_events(tmp_path, state):
    return [event.step for event in recorded(tmp_path, state)]


def test_the_last_ones_are_kept(make, tmp_path):
    train(*make(keep=2), range(1, 23))
    assert steps(tmp_path) == [15, 20]
    assert steps_in_events(tmp_path, "written") == [5, 10, 15, 20]


def test_time_alone_can_decide(make, tmp_path):
    train(*make(every_steps=0, every_seconds=1e-9), range(1, 4))
    assert steps(tmp_path) == [2, 3]
    train(*make(every_steps=0, every_seconds=1000.0), range(1, 4))
    assert steps(tmp_path) == [2, 3]


def test_without_a_rhythm_nothing_is_saved(make, tmp_path):
    checkpoints, variable = make(every_steps=0)
    train(checkpoints, variable, range(1, 11))
    checkpoints.save({"step": 10})
    assert steps(tmp_path) == []


def test_the_newest_is_taken_up(make):
    train(*make(), range(1, 13))
    checkpoints, variable = make()
    saved = checkpoints.load(after=-1)
    assert (saved["step"], saved["evaluated_step"]) == (10, 9)
    assert variable.numpy().tolist() == [10.0, 10.0]


@pytest.mark.parametrize(
    ("calls", "counters"),
    [
        (-1, {}),
        (1, {"epoch_ended_step": 0, "epoch_begun_step": 0}),
        (20, {"epoch_ended_step": 10, "epoch_begun_step": 9}),
        (21, {"epoch_ended_step": 10, "epoch_begun_step": 10}),
    ],
)
def test_what_version_1_counted_in_one_number_is_read_as_two(make, folder, calls, counters):
    metadata = {"format_version": "1", "step": "10", "calls": str(calls), "facts": "{}"}
    path = checkpoint_files.path_of(folder, 10)
    write_tensors(path, {"kernel": np.ones(2, np.float32)}, metadata)
    saved = make(facts={})[0].load(after=-1)
    assert {name: saved[name] for name in saved if name.startswith("epoch")} == counters


def test_who_is_ahead_of_the_newest_keeps_its_state(make):
    train(*make(), range(1, 13))
    checkpoints, variable = make(value=-1.0)
    assert checkpoints.load(after=10) is None
    assert variable.numpy().tolist() == [-1.0, -1.0]


def test_damaged_newest_ones_give_way_to_the_one_before(make, tmp_path, caplog):
    train(*make(keep=3), range(1, 16))
    for step in (10, 15):
        damage(tmp_path, step)
    checkpoints, variable = make()
    assert checkpoints.load(after=-1)["step"] == 5
    assert variable.numpy().tolist() == [5.0, 5.0]
    assert "step-000000010.safetensors" in caplog.text
    assert steps_in_events(tmp_path, "damaged") == [15, 10]
    # It is known now: no ring that forms later reads it again.
    assert checkpoints.newest_step() == 5


def test_a_damaged_newer_one_pushes_out_no_good_one(make, tmp_path):
    train(*make(keep=1), [20])
    damage(tmp_path, 20)
    checkpoints, variable = make(keep=1)
    train(checkpoints, variable, [15])
    assert steps(tmp_path) == [15, 20]
    assert checkpoints.load(after=-1)["step"] == 15
    train(checkpoints, variable, [20])
    assert checkpoints.newest_step() == 20
    assert make()[0].load(after=-1)["step"] == 20


def test_a_half_written_file_is_no_checkpoint_and_goes_with_the_next(make, folder):
    (folder / ".step-000000003.host.7.partial").write_bytes(b"half")
    (folder / ".step-000000099.host.7.partial").write_bytes(b"just being written")
    checkpoints, variable = make()
    assert checkpoints.load(after=-1) is None
    train(checkpoints, variable, [5])
    assert sorted(path.name for path in folder.iterdir()) == [
        ".step-000000099.host.7.partial",
        "step-000000005.safetensors",
    ]


def test_a_write_that_fails_is_told_and_training_goes_on(make, tmp_path, caplog):
    (tmp_path / "checkpoints").write_text("no folder can be made here")
    train(*make(), range(1, 6))
    assert "step 5" in caplog.text
    assert steps_in_events(tmp_path, "failed") == [5]


def test_whatever_ends_the_writing_is_told_and_training_goes_on(make, tmp_path):
    train(*make(dtype=object), range(1, 6))  # Of which a file can hold nothing.
    (failed,) = recorded(tmp_path, "failed")
    assert failed.step == 5
    assert "TypeError" in failed.message


def test_a_slow_disk_never_holds_more_than_one_copy(make, tmp_path, monkeypatch, caplog):
    go_on, write = threading.Event(), checkpoint.write_tensors

    def slow_write(*arguments):
        go_on.wait(30)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write_tensors", slow_write)
    checkpoints, _ = make()
    for step in range(1, 13):
        checkpoints.after_step({"step": step})
    go_on.set()
    checkpoints.wait()
    assert steps(tmp_path) == [5]
    assert "step 10" in caplog.text


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        # That of a version that shuffled otherwise.
        ({"order of blocks": "feistel"}, "order of blocks"),
        ({"train.batch_size": 48}, r"train\.batch_size=48\D+24"),
        ({"train.batch_size": 48, "data_plan.lanes": 9}, r"lanes and train\.batch_size"),
    ],
)
def test_another_training_is_refused_by_all_that_differs(make, facts, named):
    train(*make(), [5])
    checkpoints, _ = make(facts={**FACTS, **facts})
    with pytest.raises(ConfigError, match=named):
        checkpoints.load(after=-1)


def test_another_model_is_refused_by_its_variables(make):
    train(*make(), [5])
    checkpoints, _ = make(shape=(3,))
    with pytest.raises(DataError, match=r"\(float32\[2\]\).*kernel \(float32\[3\]\)"):
        checkpoints.load(after=-1)


def test_where_there_must_be_one_none_is_an_error(make, tmp_path):
    for is_damaged in (False, True):
        if is_damaged:
            train(*make(), [5])
            damage(tmp_path, 5)
        with pytest.raises(DataError, match="resume=must"):
            make(must_exist=True)[0].load(after=-1)
