"""Phases of a PyTorch model: the same as a loop by hand, and all or nothing in a ring."""

import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from edl_horovod.spec import Phase
from tests.jobs import training
from tests.later import LATER
from tests.specs import with_methods

if LATER:
    import torch
    from torch.nn.functional import softplus

    from edl_horovod.frameworks.torch.framework import TorchFramework
    from edl_horovod.frameworks.torch.structures import take_examples
    from tests.torch_ring import Reducer

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS = 8, 6


class LostMember(Exception):
    pass


if LATER:

    class FailingReducer(Reducer):
        """A ring of one rank that breaks in some passes."""

        failing: ClassVar[set[int]] = set()
        count = 0

        def __init__(self, parameters):
            super().__init__(parameters, None, 0)

        def finish(self, small, weight):
            FailingReducer.count += 1
            if FailingReducer.count in FailingReducer.failing:
                raise LostMember
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad *= self._weight / weight
            return small


def loss_by_hand(phase, model, features):
    """The loss of `torch_gan` whose generator reads its noise from the features."""
    score = model.critic(model.generator(features["z"]))
    if phase == "generator":
        return softplus(-score).mean()
    return softplus(score).mean() + softplus(-model.critic(features["x"])).mean()


def batches():
    random = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        features = {
            name: torch.randn(BATCH, n, generator=random) for name, n in (("x", 4), ("z", 3))
        }
        yield Batch(features, torch.zeros(BATCH, 1), BATCH, None, lambda: np.arange(BATCH))


def make_step(**methods):
    FailingReducer.failing, FailingReducer.count = set(), 0
    framework = TorchFramework(None, None, lambda parameters, *_: FailingReducer(parameters))
    framework.begin(slot=0, seed=4)
    loaded = load_spec(ZOO, "torch_gan", params={}, plain_models=framework.plain_models)
    example, *_ = batches()
    return framework.step(with_methods(loaded, **methods), example, training(BATCH))


def run(step, batch, *, is_alone=True):
    return step.step(batch, wants_change=False, is_alone=is_alone, salt=0)


def values_of(step):
    return {name: np.array(variable.numpy()) for name, variable in step.variables.items()}


@pytest.mark.parametrize("is_alone", [True, False])
def test_phases_train_as_the_same_loop_by_hand(is_alone):
    step = make_step(create_phase_loss=loss_by_hand)
    by_hand = copy.deepcopy(step.model.runner.module).train()
    optimizers = {
        name: torch.optim.SGD(getattr(by_hand, name).parameters(), 0.05, 0.5)
        for name in ("critic", "generator")
    }
    for number, batch in enumerate(batches()):
        for name in ("critic", "critic", "generator")[: 3 if number % 2 == 0 else 2]:
            by_hand.zero_grad()
            loss = loss_by_hand(name, by_hand, batch.features)
            loss.backward()
            optimizers[name].step()
        sums = run(step, batch, is_alone=is_alone)
        assert sums.metrics[f"{name}_loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours = step.model.runner.module.state_dict()
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    assert all(parameter.requires_grad for parameter in step.model.runner.module.parameters())


@pytest.mark.parametrize("num_examples", [BATCH, 3, 1])
def test_new_records_divide_the_step_among_the_repeats(num_examples):
    def create_phases(model):
        critic, generator = (list(part.parameters()) for part in (model.critic, model.generator))
        return [Phase("generator", generator), Phase("critic", critic, repeats=2, records="new")]

    seen = []

    def loss(phase, model, features):
        seen.append((phase, features["x"]))
        return features["x"].mean() + 0 * loss_by_hand(phase, model, features)

    step = make_step(create_phases=create_phases, create_phase_loss=loss)
    whole, *_ = batches()
    run(step, whole)  # The first step also tries the losses on repeated examples.
    seen.clear()
    part = take_examples(whole, np.arange(num_examples))
    sums = run(step, replace(part, places=lambda: 2 + np.arange(num_examples)))
    x = part.features["x"]
    parts = [("generator", x), ("critic", x[0::2]), ("critic", x[1::2])]
    parts = [(phase, rows) for phase, rows in parts if len(rows)]
    for (phase, found), (expected_phase, expected) in zip(seen, parts, strict=True):
        assert phase == expected_phase
        torch.testing.assert_close(found, expected)
    assert sums.num_examples == num_examples
    assert sums.metrics["critic_loss"] == pytest.approx(x.mean().item(), rel=1e-5)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_member_that_is_lost_in_any_phase_leaves_the_step_without_effect(failing):
    step, undisturbed = make_step(), make_step()
    first, second, third, *_ = batches()
    for batch in (first, second):
        run(step, batch)
    before = values_of(step)
    FailingReducer.failing, FailingReducer.count = {failing}, 0
    began = time.monotonic()
    with pytest.raises(LostMember):
        run(step, third, is_alone=False)
    assert 0 < step.waited_seconds() < time.monotonic() - began
    for name, value in values_of(step).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    FailingReducer.failing = set()
    again = run(step, third)
    for batch in (first, second):
        run(undisturbed, batch)
    assert again.loss == pytest.approx(run(undisturbed, third).loss, rel=1e-6)


def test_the_noise_of_an_example_follows_from_its_place_and_is_new_in_each_pass():
    drawn = []

    def loss(phase, model, features, noise):
        drawn.append(noise(3))
        return model.critic(model.generator(drawn[-1])).mean() + model.critic(features["x"]).mean()

    step = make_step(create_phase_loss=loss)
    batch, *_ = batches()
    start = values_of(step)
    run(step, batch)
    whole = drawn[-3:]
    assert len({rows.numpy().tobytes() for rows in whole}) == 3
    for name, variable in step.variables.items():
        variable.assign(start[name])
    half = {name: value[4:] for name, value in batch.features.items()}
    run(step, Batch(half, batch.labels[4:], 4, None, lambda: np.arange(4, 8)))
    for rows, part in zip(whole, drawn[-3:], strict=True):
        torch.testing.assert_close(rows[4:], part, rtol=0, atol=0)


def test_an_optimizer_of_other_variables_is_refused():
    def create_optimizer(model):
        return {name: torch.optim.SGD(model.parameters(), 0.1) for name in ("critic", "generator")}

    with pytest.raises(UserCodeError, match="for the variables of the phase"):
        make_step(create_optimizer=create_optimizer)
