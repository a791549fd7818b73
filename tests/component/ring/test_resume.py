"""A training that goes on from a checkpoint is the training that was never interrupted."""

import os

import pytest

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.job import checkpoint_files, events
from tests.arrays import assert_close
from tests.job_events import event

EPOCHS = "train.epochs=3"
STEPS = 15


def assert_same_weights(ours, expected):
    assert_close(ours.weights(), expected.weights(), rtol=1e-4, atol=1e-6)


def saved_steps(tmp_path, job="job"):
    return checkpoint_files.steps_in(tmp_path / job / "checkpoints")


@pytest.mark.long
def test_every_step_is_that_of_an_uninterrupted_training(train, tmp_path):
    whole = train(EPOCHS, job="whole")
    assert list(whole.losses) == list(range(1, STEPS + 1))
    first = train(EPOCHS, "checkpoint.every_steps=4", "checkpoint.keep=9", until=10)
    # Of a crash right after step 10: the checkpoint of step 8 is the newest.
    checkpoint_files.path_of(tmp_path / "job" / "checkpoints", 10).unlink()
    second = train(EPOCHS, "resume=auto")
    assert list(second.losses) == list(range(9, STEPS + 1))
    # Several threads add up in any order, so the last bits may differ.
    losses = {**first.losses, **second.losses}
    assert list(losses) == list(whole.losses)
    assert_close(losses.values(), whole.losses.values(), rtol=1e-5)
    assert_same_weights(second, whole)


@pytest.mark.long
def test_who_is_dismissed_saves_its_last_step(train, tmp_path):
    train(EPOCHS, until=7)
    assert saved_steps(tmp_path) == [7]


@pytest.mark.long
def test_a_damaged_newest_checkpoint_costs_only_its_steps(train, tmp_path, caplog):
    whole = train(EPOCHS, job="whole")
    train(EPOCHS, "checkpoint.every_steps=4", "checkpoint.keep=9", until=10)
    for step in (8, 10):
        os.truncate(checkpoint_files.path_of(tmp_path / "job" / "checkpoints", step), 1000)
    second = train(EPOCHS, "resume=must")
    assert min(second.losses) == 5
    assert "step-000000008.safetensors" in caplog.text
    assert_same_weights(second, whole)


@pytest.mark.long
def test_a_finished_training_can_be_lengthened(train, tmp_path):
    train("train.epochs=2")
    assert saved_steps(tmp_path) == [10]
    longer = train(EPOCHS, "resume=must")
    assert list(longer.losses) == list(range(11, STEPS + 1))
    assert_same_weights(longer, train(EPOCHS, job="whole"))


@pytest.mark.long
def test_the_last_evaluation_is_not_lost_with_those_who_made_it(train, tmp_path):
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    first = train(EPOCHS, held_out)
    second = train(EPOCHS, held_out, "resume=must")
    assert second.losses == {}
    assert second.result == first.result
    assert second.result.metrics["loss"] > 0


@pytest.mark.long
def test_an_evaluation_that_a_lost_leader_told_is_made_but_told_no_second_time(train, tmp_path):
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    train(EPOCHS, held_out, until=5)
    log = tmp_path / "job" / "events.jsonl"
    assert not [e for e in events.read(log) if e.event.kind == "evaluation"]
    with events.EventLog(log, "lost") as lost:
        lost.write(event("evaluation", step=5))
    second = train(EPOCHS, held_out, "resume=must")
    reported = [(e.source, e.event.step) for e in events.read(log) if e.event.kind == "evaluation"]
    assert reported == [("lost", 5), ("test", 10), ("test", 15)]
    assert second.work.state.counters.evaluated_step == 15


@pytest.mark.long
def test_an_evaluation_may_be_new_where_a_training_goes_on(train, tmp_path):
    train(EPOCHS, until=7)
    second = train(EPOCHS, f"validation_data={tmp_path}/data/part-0.recordio", "resume=must")
    assert min(second.losses) == 8
    assert second.result.metrics["loss"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("train.batch_size=48", r"train\.batch_size=48\D+24"),
        ("data_plan.seed=3", r"data_plan\.seed=3\D+0"),
        ("train.learning_rate=0.1", r"train\.learning_rate"),
    ],
)
def test_another_training_is_refused(train, setting, named):
    train(EPOCHS, until=7)
    with pytest.raises(ConfigError, match=named):
        train(EPOCHS, "resume=auto", setting)


@pytest.mark.long
def test_another_model_is_refused(train):
    train(EPOCHS, until=2)
    with pytest.raises(DataError, match="another model"):
        train(EPOCHS, "resume=auto", "model_def=counting", "params.num_records=100")


@pytest.mark.long
def test_weights_of_a_trained_model_begin_a_new_training(train, tmp_path):
    assert max(train(EPOCHS, job="first").losses) == STEPS
    second = train(EPOCHS, f"init_from={tmp_path}/first-out", until=1, job="second")
    assert second.losses[1] < train(EPOCHS, until=1, job="fresh").losses[1]
    assert int(second.step.optimizer.iterations.numpy()) == 1


def test_a_file_of_weights_is_no_trained_model_of_keras(train, tmp_path):
    (tmp_path / "first.pt").touch()
    with pytest.raises(ConfigError, match=r"init_from=.*load"):
        train(EPOCHS, f"init_from={tmp_path}/first.pt")


@pytest.mark.long
def test_a_ring_of_one_step_is_told(train, tmp_path):
    train(until=1)
    log = events.read(tmp_path / "job" / "events.jsonl")
    assert [(e.event.step, e.event.size) for e in log if e.event.kind == "step"] == [(1, 1)]
