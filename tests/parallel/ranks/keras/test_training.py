"""A whole training on a ring: what is decided between steps is decided alike on all ranks.

All ranks also train alone: a worker that gets warm tries a collective, here in the whole ring.
"""

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.config.compose import compose
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.frameworks.keras.framework import FRAMEWORK
from edl_horovod.job.events import EventLog
from edl_horovod.records.plan import StepSpans
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Membership
from edl_horovod.tasks import warm as prepare
from tests import numpy_framework
from tests.alone import ME
from tests.arrays import assert_close
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.side import ALONE, ZOO
from tests.records import write_records
from tests.watched_framework import watch
from tests.zoo.tiny import TinySpec


@pytest.fixture
def watched(monkeypatch):
    """Keras, whose trainings a test may see and change."""
    return watch("keras", FRAMEWORK, monkeypatch)


class Formed(Membership):
    """A ring that is there already and never changes."""

    def __init__(self, world):
        super().__init__(None)
        self._world = world
        self.first_weights = []

    def formed(self, world, *, has_state=True):
        """All ranks have the state that the training begins with."""
        self.first_weights = weights(self)

    def join(self, step):
        return self._world

    def wants_change(self):
        return False

    def failed(self, failure, step):
        raise AssertionError(failure)


def train(world, name, *overrides, model_def="tiny"):
    """Train by a framework that is watched; returns the ring that it was, and the result."""
    scratch = Path(os.environ["RING_SCRATCH"]) / f"{name}-{os.environ['HOROVOD_RANK']}"
    data = write_records(scratch / "data", 100)
    keras.backend.clear_session()
    settings = [f"data={data}", f"validation_data={data}", f"output={scratch}/out"]
    settings += [f"job_dir={scratch}", f"model_zoo={ZOO}", f"model_def={model_def}"]
    settings += ["train.batch_size=24", "data_plan.lanes=6", "data_plan.shuffle_window=16"]
    config = compose("train", [*settings, *overrides])
    with (
        EventLog(scratch / "events.jsonl", "test") as log,
        prepare.make_warm(config, log, ME) as work,
    ):
        ring = Formed(world)
        ring.state, ring.step = work.state, prepare.framework_of(config).made_step
        result = loop.run(work, ring, log)
    return ring, result


def weights(ring):
    return [variable.numpy() for variable in ring.step.model_variables.values()]


@pytest.mark.long
def test_early_stopping_is_that_of_one_process(world, watched):
    settings = [
        "train.epochs=30",
        "train.early_stopping.metric=loss",
        "train.early_stopping.patience=2",
        "train.early_stopping.min_delta=0.3",
        "train.early_stopping.restore_best=true",
    ]
    ring, ours = train(world, "stops", *settings)
    ours_seen = ring.state.variables["job/early_stopping"].numpy()
    assert_same_everywhere([ours_seen])
    single, of_one = train(ALONE, "stops-alone", *settings)
    assert ours.steps == of_one.steps < 150
    np.testing.assert_allclose(ours.metrics["loss"], of_one.metrics["loss"], rtol=1e-4)
    np.testing.assert_array_equal(
        ours_seen[1:], single.state.variables["job/early_stopping"].numpy()[1:]
    )


class Halves(keras.callbacks.Callback):
    """Halves the rate at every second epoch, ends after five, and notes where it ran."""

    def __init__(self, ran):
        super().__init__()
        self.losses, self.ran = [], ran

    def on_epoch_end(self, epoch, logs=None):
        self.ran.append(epoch)
        self.losses.append(logs["loss"])
        if len(self.losses) % 2 == 0:
            rate = self.model.optimizer.learning_rate
            rate.assign(rate * 0.5)
        if len(self.losses) == 5:
            self.model.stop_training = True


@pytest.mark.long
def test_callbacks_change_all_ranks_alike(world, watched):
    ran = []
    watched.methods["create_callbacks"] = lambda: [Halves(ran)]
    ring, ours = train(world, "called", "train.epochs=9")
    assert len(ran) == (5 if world.is_leader else 0)
    rate = float(ring.step.optimizer.learning_rate)
    assert rate == pytest.approx(0.05 / 4)
    assert_same_everywhere([*weights(ring), np.float64(rate)])
    single, of_one = train(ALONE, "called-alone", "train.epochs=9")
    assert ours.steps == of_one.steps == 25
    assert_close(weights(ring), weights(single), rtol=1e-4, atol=1e-6)


class Looks(keras.callbacks.Callback):
    """Notes what it sees around each step, and where it ran."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def on_train_batch_begin(self, batch, logs=None):
        self.begun = batch

    def on_train_batch_end(self, batch, logs=None):
        assert batch == self.begun
        self.seen.append((batch, logs["loss"]))


@pytest.mark.long
def test_callbacks_look_at_each_step_of_the_whole_ring_on_the_leader(world, watched):
    of_ring, of_single = [], []
    watched.methods["create_callbacks"] = lambda: [Looks(of_ring)]
    settings = ["train.epochs=2", "callbacks.per_step=true"]
    ring, ours = train(world, "looks", *settings)
    assert_same_everywhere(weights(ring))
    watched.methods["create_callbacks"] = lambda: [Looks(of_single)]
    single, of_one = train(ALONE, "looks-alone", *settings)
    assert ours.steps == of_one.steps == 10
    if world.is_leader:
        assert [batch for batch, _ in of_ring] == [*range(5), *range(5)]
        # The mean of the epoch over all ranks' examples, as one process has it.
        losses = [[loss for _, loss in seen] for seen in (of_ring, of_single)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
    else:
        assert of_ring == []
    assert_close(weights(ring), weights(single), rtol=1e-4, atol=1e-6)


def test_a_framework_that_the_package_does_not_know_trains_as_one_process(world, monkeypatch):
    monkeypatch.setitem(FRAMEWORKS, "numpy", numpy_framework.ENTRY)
    watch("numpy", numpy_framework.Framework(KerasCollectives()), monkeypatch)
    settings = ["framework=numpy", "train.epochs=9"]
    ring, ours = train(world, "numpy", *settings, model_def="line")
    assert_same_everywhere(weights(ring))
    single, of_one = train(ALONE, "numpy-alone", *settings, model_def="line")
    assert ours.metrics["loss"] == pytest.approx(of_one.metrics["loss"])
    np.testing.assert_allclose(weights(ring)[0], weights(single)[0], rtol=1e-9)


GROWING = ["elastic.batching=per_rank", "elastic.learning_rate_warmup_steps=4"]
GROWING += ["train.batch_size=7"]


def plain_keras(first_weights, order, spans, *, num_steps, rates, num_lanes=6):
    """The tiny model trained in one process by plain Keras, one batch of records a step."""
    random = np.random.default_rng(7)
    x = np.array([random.normal(size=4).astype(np.float32) for _ in range(100)])
    y = (x.sum(axis=1, keepdims=True) * np.float32(0.5)).astype(np.float32)
    spec = TinySpec()
    model, optimizer = spec.create_model(), spec.create_optimizer()
    for variable, value in zip(model.trainable_variables, first_weights, strict=True):
        variable.assign(value)
    optimizer.build(model.trainable_variables)
    for step in range(num_steps):
        span = spans[step]
        ids = order(span.epoch).between(span.first, span.last, range(num_lanes))
        optimizer.learning_rate = rates(step)
        with tf.GradientTape() as tape:
            loss = spec.create_loss(model({"x": x[ids]}, training=True), y[ids])
            loss += tf.add_n(model.losses)
        values = [variable.value for variable in model.trainable_variables]
        gradients = tape.gradient(loss, values)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return [variable.numpy() for variable in model.trainable_variables]


@pytest.mark.long
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_batch_that_grows_with_the_ring_is_plain_keras_with_a_larger_one(
    world, is_alone, watched
):
    # Here there is a ring already, so that a rehearsal would be a step.
    watched.rehearse = lambda *_: None
    on = ALONE if is_alone else world
    settings = [*GROWING, "train.epochs=2", "debug.ledger=true"]
    ring, result = train(on, f"grows-{is_alone}", *settings)
    plan = watched.plans[0]
    assert plan.rank_batch == 7
    assert result.steps == 2 * -(-100 // (7 * on.size))
    assert float(ring.step.optimizer.learning_rate) == np.float32(0.05)
    expected = plain_keras(
        ring.first_weights,
        plan.order,
        StepSpans(epoch_records=100, step_records=7 * on.size),
        num_steps=result.steps,
        rates=lambda step: 0.05 * (1 + (on.size - 1) * min(step / 4, 1)),
    )
    assert_close(weights(ring), expected, rtol=1e-3, atol=1e-5)
    if not is_alone:
        assert_same_everywhere(weights(ring))


@pytest.mark.long
def test_a_plateau_lowers_the_rate_that_a_growing_batch_multiplies(world, watched):
    watched.rehearse = lambda *_: None  # As above.
    plateau = {"monitor": "loss", "factor": 0.5, "patience": 1, "min_delta": 100.0}
    watched.methods["create_callbacks"] = lambda: [keras.callbacks.ReduceLROnPlateau(**plateau)]
    # Three ranks do not have the same share of the lanes.
    settings = [*GROWING, "train.epochs=4", "data_plan.lanes=4"]
    ring, result = train(world, "plateau", *settings)
    spans = StepSpans(epoch_records=100, step_records=7 * world.size)

    def rate(step):
        reduced = 0.5 ** max(0, spans[step].epoch - 1)  # No epoch is better than the first.
        return 0.05 * reduced * (1 + (world.size - 1) * min(step / 4, 1))

    expected = plain_keras(
        ring.first_weights,
        watched.plans[0].order,
        spans,
        num_steps=result.steps,
        rates=rate,
        num_lanes=4,
    )
    assert_close(weights(ring), expected, rtol=1e-3, atol=1e-5)
    own_rate = np.float32(ring.step.optimizer.learning_rate)
    np.testing.assert_allclose(own_rate, 0.05 * 0.5**3, rtol=1e-6)
    assert_same_everywhere([*weights(ring), own_rate])
