"""`gan` in PyTorch."""

from math import inf

import torch
from torch import nn
from torch.nn.functional import softplus
from torch_curve import TorchCurveSpec

from edl_horovod import Phase


def net(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs)
    )


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = net(3, 4), net(4, 1)

    def forward(self, features):
        return self.critic(features["x"])


class TorchGanSpec(TorchCurveSpec):
    def __init__(self, context=None, slow_until="", slower_after=inf, critic_records="same"):
        super().__init__(context, slow_until, slower_after)
        self._critic_records = critic_records

    def create_model(self):
        return Gan()

    def create_phases(self, model):
        return [
            Phase(
                "critic", list(model.critic.parameters()), repeats=2, records=self._critic_records
            ),
            Phase("generator", list(model.generator.parameters()), every=2),
        ]

    def create_optimizer(self, model, lr=0.05):
        return {
            name: torch.optim.SGD(getattr(model, name).parameters(), lr, 0.5)
            for name in ("critic", "generator")
        }

    def create_phase_loss(self, phase, model, features, noise):
        score = model.critic(model.generator(noise(3)))
        if phase == "generator":
            return softplus(-score).mean()
        return softplus(score).mean() + softplus(-model.critic(features["x"])).mean()
