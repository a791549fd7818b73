"""`curve` in PyTorch: the loss of every step is the same on any ring."""

from math import inf

import torch
from pauses import Pauses
from torch import nn
from torch_tiny import TorchTinySpec, parse

from edl_horovod import Mode


class Net(nn.Module):
    def __init__(self, width, *, batch_norm):
        super().__init__()
        self.hidden, self.output = nn.Linear(4, width, bias=not batch_norm), nn.Linear(width, 1)
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()

    def forward(self, features):
        return self.output(torch.tanh(self.norm(self.hidden(features["x"]))))


class TorchCurveSpec(TorchTinySpec):
    def __init__(self, context=None, slow_until="", slower_after=inf, width=16):
        super().__init__(context)
        self._pauses, self._width = Pauses(slow_until, slower_after=slower_after), width

    def create_model(self, batch_norm=False):
        return Net(self._width, batch_norm=batch_norm)

    def create_dataset(self, records, mode):
        self._pauses.wait()
        x, y = parse(records, x=(4,), y=(1,))
        return {"x": x} if mode is Mode.PREDICTION else ({"x": x}, y)

    def create_optimizer(self, model, lr=0.01):
        return torch.optim.Adam(model.parameters(), lr, weight_decay=1e-4)
