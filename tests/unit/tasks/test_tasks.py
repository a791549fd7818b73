"""The tasks on a framework that the package does not know, in one process, without TensorFlow."""

import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.cli.main import main
from edl_horovod.config.compose import compose
from edl_horovod.config.tasks import TASKS, Task, check_start
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.world import World
from edl_horovod.job import checkpoint_files, events
from edl_horovod.records.reader import Reader
from edl_horovod.ring import activity
from tests import numpy_framework
from tests.alone import Alone
from tests.jobs import config_of
from tests.records import write_records

TRAIN = ("model_def=line", "framework=numpy", "train.epochs=20", "train.batch_size=20")


def events_of(folder, kind):
    log = [recorded.event for recorded in events.read(folder / "events.jsonl")]
    return [event for event in log if event.kind == kind]


def log_messages(folder):
    return [event.message for event in events_of(folder, "log")]


@pytest.mark.parametrize(("devices", "is_told"), [("0", True), ("-1", False), ("", False)])
def test_a_gpu_that_is_asked_for_and_absent_is_told(run, tmp_path, monkeypatch, devices, is_told):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    run("train", *TRAIN, "train.max_steps=1")
    messages = log_messages(tmp_path)
    assert sum("CUDA_VISIBLE_DEVICES=0" in message for message in messages) == is_told


def test_what_is_left_out_of_the_data_is_told_once_a_job(run, tmp_path):
    data = write_records(tmp_path / "data", 300)
    damaged = tmp_path / "data" / "part-1.recordio"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    settings = (*TRAIN, "train.max_steps=2", "data_plan.damaged=skip")
    # As two workers of a job do, each with an index of its own.
    for name in ("a", "b"):
        run("train", *settings, data=data, output=name, job=f"{name}.job")
    assert sum(str(damaged) in message for message in log_messages(tmp_path)) == 1


def test_it_trains_evaluates_and_predicts_with_two_lines_in_tables(run, tmp_path):
    trained = run("train", *TRAIN, "validation_data=numbers:30")
    assert trained.steps == 100
    assert trained.metrics["loss"] < 1e-4

    model = f"trained_model={tmp_path / 'out'}"
    evaluated = run("evaluate", model, data="numbers:30", output="scores", job="e")
    assert evaluated.metrics == pytest.approx(trained.metrics)
    assert evaluated.examples == 30

    run("predict", model, data="numbers:30", output="p.recordio", job="p")
    with Reader.open(str(tmp_path / "p.recordio")) as reader:
        assert len(list(reader)) == 30


@pytest.mark.long(after=1)
@pytest.mark.parametrize("batching", ["global", "per_rank"])
def test_a_training_that_goes_on_is_the_one_that_was_never_interrupted(run, tmp_path, batching):
    settings = (*TRAIN, f"elastic.batching={batching}", "train.batch_size=24")
    run("train", *settings, output="whole", job="whole.job")
    run("train", *settings, "overwrite=true", until=37)
    folder = tmp_path / "job" / "checkpoints"
    assert checkpoint_files.steps_in(folder)[-1] == 37
    run("train", *settings, "resume=must", "overwrite=true")
    ours, whole = (np.load(tmp_path / name / "kernel.npy") for name in ("out", "whole"))
    np.testing.assert_array_equal(ours, whole)


def test_a_training_does_not_go_on_with_a_batch_of_the_other_kind(run):
    run("train", *TRAIN, until=7)
    with pytest.raises(ConfigError, match=r"elastic\.batching"):
        run("train", *TRAIN, "elastic.batching=per_rank", "resume=must", "overwrite=true")


def test_steps_and_epochs_are_counted_where_the_batch_grows(run, tmp_path):
    settings = [
        "elastic.batching=per_rank",
        "train.batch_size=30",
        "train.epochs=3",
        "validation_data=numbers:30",
        "debug.ledger=true",
    ]
    assert run("train", "model_def=line", "framework=numpy", *settings).steps == 3 * 4
    assert [event.step for event in events_of(tmp_path, "evaluation")] == [4, 8, 12]
    last = events_of(tmp_path, "step")[-1]
    assert (last.step, last.total_steps, last.epoch, last.records_seen) == (12, 12, 2, 300)


def test_the_best_weights_are_written_where_a_training_stops_early(run, tmp_path):
    settings = [
        "validation_data=numbers:30",
        "train.early_stopping.metric=loss",
        "train.early_stopping.patience=2",
        "train.early_stopping.min_delta=0.5",
        "train.early_stopping.restore_best=true",
    ]
    trained = run("train", *TRAIN, *settings)
    assert trained.steps < 100
    model = f"trained_model={tmp_path / 'out'}"
    evaluated = run("evaluate", model, data="numbers:30", output="scores", job="e")
    assert evaluated.metrics == pytest.approx(trained.metrics)


def test_a_training_ends_with_its_time(run, tmp_path):
    settings = ["validation_data=numbers:30", "train.epochs=100", "train.max_seconds=1e-6"]
    trained = run("train", "model_def=line", "framework=numpy", *settings)
    assert 0 < trained.steps < 100
    assert [event.step for event in events_of(tmp_path, "evaluation")] == [trained.steps]
    assert any("max_seconds" in message for message in log_messages(tmp_path))


class Changing(Alone):
    """A ring that changes after each step, with a standstill; a step takes 20 ms."""

    def join(self, step):
        time.sleep(0.1)
        return World(rank=0, size=1, generation=step + 1)

    def wants_change(self):
        time.sleep(0.02)
        return True


def test_steps_before_a_change_of_the_ring_count_for_the_time_of_a_training(run):
    settings = ["validation_data=numbers:30", "train.epochs=100", "train.max_seconds=0.12"]
    trained = run("train", "model_def=line", "framework=numpy", *settings, membership=Changing())
    # An epoch takes over 0.2 s, of which only the last step was counted.
    assert trained.steps <= 10


@pytest.mark.parametrize(
    ("task", "settings", "key"),
    [
        ("evaluate", ["trained_model=m", "elastic.batching=per_rank"], r"elastic\.batching"),
        ("train", ["model_def=line", "train.max_seconds=5"], r"validation_data.*max_seconds"),
        ("train", ["model_def=line", "framework=nump"], "keras.*nump"),
    ],
    ids=["a batch of each rank", "a bound in time without evaluations", "no such framework"],
)
def test_settings_that_do_not_fit_a_task_are_refused(run, task, settings, key):
    with pytest.raises(ConfigError, match=key):
        run(task, *settings)


@pytest.fixture
def seconds_of(run, monkeypatch):
    """Run a task whose examples take 2 s a batch and nothing else any time: seconds by cause."""
    clock = SimpleNamespace(now=1e6)
    fake_time = SimpleNamespace(**{**vars(time), "monotonic": lambda: clock.now})
    monkeypatch.setattr(activity, "time", fake_time)
    next_batch = numpy_framework.Batches.next_batch

    def slow_batch(batches):
        clock.now += 2
        return next_batch(batches)

    monkeypatch.setattr(numpy_framework.Batches, "next_batch", slow_batch)

    def run_timed(task, *settings, **options):
        membership = Alone()
        before = membership.activity.account()[0]
        run(task, *settings, membership=membership, **options)
        after = membership.activity.account()[0]
        names = ("input", "computing", "evaluation")
        return {name: after[name] - before[name] for name in names}

    return run_timed


def test_a_wait_for_examples_is_input_in_each_task(seconds_of, tmp_path):
    steps, validation_steps = 2 * 5, 2 * 2
    settings = ("model_def=line", "framework=numpy", "train.epochs=2", "train.batch_size=20")
    trained = seconds_of("train", *settings, "validation_data=numbers:40")
    # An evaluation is paused for, whatever takes its time.
    assert trained == {"input": 2 * steps, "computing": 0, "evaluation": 2 * validation_steps}

    rounds = ("train.local.steps=5", "train.local.replicas=2")
    local = seconds_of("train", *settings, *rounds, output="rounds", job="rounds.job")
    assert local == {"input": 2 * 2 * steps, "computing": 0, "evaluation": 0}

    model = f"trained_model={tmp_path / 'out'}"
    for task, output in (("evaluate", "scores"), ("predict", "p.recordio")):
        seconds = seconds_of(task, model, output=output, job=task)
        assert seconds["input"] > 0
        assert seconds["computing"] == 0


def test_a_new_task_is_a_module_and_a_line_in_the_table(run, monkeypatch, capsys):
    task = Task(
        summary="Add the records up.",
        module="tests.adding_task",
        needs=("data",),
        largest_ring=lambda config: 3,
        shared="counters",
    )
    monkeypatch.setitem(TASKS, "add", task)
    assert run("add", "framework=numpy", data="numbers:100").metrics == {"total": 100.0}
    with pytest.raises(ConfigError, match=r"launch.np=4, counters=3"):
        check_start(config_of("add", ["data=d", "launch.np=4"]))
    with pytest.raises(ConfigError, match="data"):
        compose("add", [])
    assert main(["--help"]) == 0
    assert re.search(r"^  add +Add the records up\.$", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(SystemExit):
        main(["add", "--help"])
    assert "add data=" in capsys.readouterr().out
    assert main(["add", "framework=keras", "data=numbers:100", "--dry-run"]) == 0
    assert ".worker" in capsys.readouterr().out
