"""Adversarial training of a PyTorch model: its examples are those of a loop by hand."""

import copy
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.jobs import training
from tests.later import LATER

if LATER:
    import torch
    from torch.nn.functional import mse_loss

    from edl_horovod.frameworks.torch.framework import TorchFramework

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS, EPSILON = 8, 5, 0.25


class NoReducer:
    def __init__(self, *arguments):
        pass


def make_step(model_def="torch_curve", params=None, **settings):
    framework = TorchFramework(None, None, NoReducer)
    framework.begin(slot=0, seed=4)
    loaded = load_spec(ZOO, model_def, params=params or {}, plain_models=framework.plain_models)
    job = training(BATCH, adversarial=AdversarialConfig(**settings))
    return framework.step(loaded, next(batches()), job)


def batches(first=0, last=BATCH):
    random = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 4, generator=random)
        y = x.sum(1, keepdim=True).sin()
        places, part = np.arange(first, last), slice(first, last)
        yield Batch({"x": x[part]}, y[part], last - first, None, lambda p=places: p)


def run(step, batch):
    return step.step(batch, wants_change=False, is_alone=True, salt=0)


def test_fgsm_trains_as_the_same_loop_by_hand():
    step = make_step(params={"batch_norm": True}, method="fgsm", epsilon=EPSILON, ratio=0.5)
    by_hand = copy.deepcopy(step.model.runner.module)
    optimizer = torch.optim.Adam(by_hand.parameters(), 0.01, weight_decay=1e-4)
    for batch in batches():
        x = batch.features["x"].clone().requires_grad_()
        loss = mse_loss(by_hand.eval()({"x": x}), batch.labels)
        (gradient,) = torch.autograd.grad(loss, x)
        changed = x.detach() + EPSILON * gradient.sign()
        x = torch.cat([changed[: BATCH // 2], x.detach()[BATCH // 2 :]])
        loss = mse_loss(by_hand.train()({"x": x}), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert run(step, batch).loss == pytest.approx(loss.item(), rel=1e-5)
    ours = step.model.runner.module.state_dict()
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6)


def test_pgd_raises_the_loss_within_its_limits():
    losses = {}
    for name, settings in {
        "plain": {},
        "fgsm": {"method": "fgsm", "epsilon": EPSILON},
        "pgd": {"method": "pgd", "epsilon": EPSILON},
        "still": {"method": "pgd", "epsilon": EPSILON, "step_size": 1e-9},
        "bound": {"method": "pgd", "epsilon": EPSILON, "clip": [-1e-9, 1e-9]},
        "wide": {"method": "pgd", "epsilon": 2 * EPSILON},
    }.items():
        losses[name] = run(make_step(**settings), next(batches())).loss
    assert losses["plain"] < losses["fgsm"] <= losses["pgd"] * 1.001 < losses["wide"]
    assert losses["still"] < losses["pgd"]
    assert losses["bound"] < losses["pgd"]


def test_the_changed_examples_of_parts_are_those_of_the_whole():
    settings = {"method": "pgd", "epsilon": EPSILON, "steps": 3, "ratio": 0.75}
    whole, *parts = (
        run(make_step(**settings), next(batches(*bounds))).loss
        for bounds in ((0, BATCH), (0, 3), (3, BATCH))
    )
    assert (3 * parts[0] + 5 * parts[1]) / BATCH == pytest.approx(whole, rel=1e-5)


def test_inputs_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="must name features"):
        make_step(method="fgsm", epsilon=EPSILON, inputs=["y"])
