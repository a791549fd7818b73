"""Local rounds of PyTorch models: types of weights, schedules, phases and outer optimizers."""

from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.config.schema import LocalConfig
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from edl_horovod.tasks.local_rounds import LocalRounds
from tests.jobs import training
from tests.later import LATER
from tests.specs import with_methods

if LATER:
    import torch

    from tests.component.frameworks.torch import rings
    from tests.torch_alone import FRAMEWORK

BATCH, REPLICAS, STEPS = 8, 2, 3


class Round:
    """The examples of a round of two replicas, the same for both."""

    batches = SimpleNamespace(lanes=range(REPLICAS))

    def steps_of(self, lane):
        random = torch.Generator().manual_seed(lane)
        for _ in range(STEPS):
            x = torch.randn(BATCH, 4, generator=random)
            yield Batch(
                {"x": x}, x.sum(1, keepdim=True).sin(), BATCH, None, lambda: np.arange(BATCH)
            )


def make_rounds(model_def="torch_curve", *, settings=None, **methods):
    FRAMEWORK.begin(slot=0, seed=4)
    FRAMEWORK.use_precision("float32")  # Another test may have left another one.
    loaded = load_spec(rings.ZOO, model_def, params={}, plain_models=FRAMEWORK.plain_models)
    local = LocalConfig(steps=STEPS, replicas=REPLICAS, **(settings or {}))
    job = training(BATCH, {"local": local})
    example = next(Round().steps_of(0))
    step = FRAMEWORK.step(with_methods(loaded, **methods), example, job)
    return LocalRounds(step, None, local)


def run(rounds, number):
    return [rings.run(rounds, Batch(Round(), None, 0)) for _ in range(number)]


@pytest.mark.parametrize("method", ["average", "diloco"])
def test_weights_of_16_bits_train_like_those_of_32(method):
    def create_model(dtype):
        torch.manual_seed(1)
        return Linear(dtype)

    class Linear(torch.nn.Linear):
        def __init__(self, dtype):
            super().__init__(4, 1)
            # Not by an argument: PyTorch 2.9 draws other numbers for another type.
            self.to(dtype)

        def forward(self, features):
            return super().forward(features["x"].to(self.weight.dtype)).float()

    settings = {"method": method, "outer_momentum": 0.3}
    losses = [
        [sums.loss for sums in run(make_rounds(settings=settings, create_model=model), 6)]
        for model in (lambda: create_model(torch.float32), lambda: create_model(torch.bfloat16))
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.1)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("inner_state", ["average", "reset", "keep"])
def test_a_schedule_counts_the_local_steps_of_all_rounds(inner_state):
    def create_optimizer(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return optimizer, {"scheduler": schedule, "interval": "step"}

    settings = {"inner_state": inner_state}
    rounds = make_rounds(settings=settings, create_optimizer=create_optimizer)
    run(rounds, 2)
    (group,) = rounds._step.optimizer.param_groups
    assert group["lr"] == pytest.approx(0.1 * 0.5 ** (2 * STEPS))


def test_infinite_values_that_no_step_changes_stay_as_they_are():
    """As in a mask, and in a schedule that waits for its first value."""

    class Masked(torch.nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

        def forward(self, features):
            return super().forward(features["x"]) + self.mask.softmax(0)[1]

    def create_optimizer(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return optimizer, {"scheduler": plateau, "monitor": "loss"}

    rounds = make_rounds(create_model=Masked, create_optimizer=create_optimizer)
    losses = [sums.loss for sums in run(rounds, 3)]
    assert losses[2] < losses[0]
    assert rounds.model_variables["mask"].numpy().tolist() == [0.0, -np.inf]
    (schedule,) = rounds._step.schedules
    assert schedule.scheduler.best == np.inf


def test_phases_train_in_rounds_and_report_their_losses():
    rounds = make_rounds("torch_gan")
    for sums in run(rounds, 3):
        assert set(sums.metrics) == {"critic_loss", "generator_loss"}
        assert np.isfinite(list(sums.metrics.values())).all()


def test_an_outer_optimizer_of_the_user_applies_the_mean_change():
    plain = make_rounds()
    ours = make_rounds(
        settings={"method": "diloco"},
        create_outer_optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.5),
    )
    start = {name: np.array(part.numpy()) for name, part in plain.model_variables.items()}
    run(plain, 1)
    run(ours, 1)
    for name, part in plain.model_variables.items():
        half = start[name] + 0.5 * (part.numpy() - start[name])
        np.testing.assert_allclose(ours.model_variables[name].numpy(), half, rtol=1e-5, atol=1e-7)
