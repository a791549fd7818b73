"""A whole training on a ring: what is decided between steps is decided alike on all ranks.

All ranks also train alone: a worker that gets warm tries a collective, here in the whole ring.
"""

import os
from pathlib import Path

import keras
import numpy as np
import pytest

from edl_horovod.config.compose import compose
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Membership
from edl_horovod.tasks import warm as prepare
from tests import numpy_framework
from tests.parallel.agreement import assert_same_everywhere
from tests.records import write_records

ME = WorkerIdentity(host="localhost", slot=0)
ZOO = Path(__file__).parents[2] / "zoo"
ALONE = World(rank=0, size=1, generation=1)


class Formed(Membership):
    """A ring that is there already and never changes."""

    def __init__(self, world):
        self._world = world

    def join(self, step):
        return self._world

    def wants_change(self):
        return False

    def failed(self, failure, step):
        raise AssertionError(failure)


def train(world, name, *overrides, model_def="tiny"):
    """Train; returns the state and the result."""
    scratch = Path(os.environ["RING_SCRATCH"]) / f"{name}-{os.environ['HOROVOD_RANK']}"
    data = write_records(scratch / "data", 100)
    keras.backend.clear_session()
    config = compose(
        "train",
        [
            f"data={data}",
            f"validation_data={data}",
            f"model_zoo={ZOO}",
            f"model_def={model_def}",
            "train.batch_size=24",
            "data_plan.lanes=6",
            "data_plan.shuffle_window=16",
            f"output={scratch}/out",
            f"job_dir={scratch}",
            *overrides,
        ],
    )
    with (
        EventLog(scratch / "events.jsonl", "test") as log,
        prepare.make_warm(config, log, ME) as work,
    ):
        result = loop.run(work, Formed(world), log)
    return work, result


def weights(work):
    return [variable.numpy() for variable in work._step.model_variables.values()]


def test_early_stopping_is_that_of_one_process(world):
    settings = [
        "train.epochs=30",
        "train.early_stopping.metric=loss",
        "train.early_stopping.patience=2",
        "train.early_stopping.min_delta=0.3",
        "train.early_stopping.restore_best=true",
    ]
    ring, ours = train(world, "stops", *settings)
    assert_same_everywhere([ring.state.variables["job/early_stopping"].numpy()])
    single, theirs = train(ALONE, "stops-alone", *settings)
    assert ours.steps == theirs.steps < 150
    np.testing.assert_allclose(ours.metrics["loss"], theirs.metrics["loss"], rtol=1e-4)
    assert ring._validation.stopping.best[0] == single._validation.stopping.best[0]


class Halves(keras.callbacks.Callback):
    """Halves the rate at every second epoch, ends after five, and counts where it ran."""

    ran = 0

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        Halves.ran += 1
        self.losses.append(logs["loss"])
        if len(self.losses) % 2 == 0:
            rate = self.model.optimizer.learning_rate
            rate.assign(rate * 0.5)
        if len(self.losses) == 5:
            self.model.stop_training = True


def test_callbacks_change_all_ranks_alike(world, monkeypatch):
    monkeypatch.setattr(LoadedSpec, "callbacks", lambda _: [Halves()])
    monkeypatch.setattr(Halves, "ran", 0)
    ring, ours = train(world, "called", "train.epochs=9")
    assert Halves.ran == (5 if world.is_leader else 0)
    rate = float(ring._step.optimizer.learning_rate)
    assert rate == pytest.approx(0.05 / 4)
    assert_same_everywhere([*weights(ring), np.float64(rate)])
    single, theirs = train(ALONE, "called-alone", "train.epochs=9")
    assert ours.steps == theirs.steps == 25
    for one, other in zip(weights(ring), weights(single), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_framework_that_the_package_does_not_know_trains_as_one_process(world, monkeypatch):
    monkeypatch.setitem(FRAMEWORKS, "numpy", numpy_framework.ENTRY)
    monkeypatch.setattr(numpy_framework.FRAMEWORK, "collectives", KerasCollectives())
    settings = ["framework=numpy", "train.epochs=9"]
    ring, ours = train(world, "numpy", *settings, model_def="line")
    assert_same_everywhere(weights(ring))
    single, theirs = train(ALONE, "numpy-alone", *settings, model_def="line")
    assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"])
    np.testing.assert_allclose(weights(ring)[0], weights(single)[0], rtol=1e-9)
