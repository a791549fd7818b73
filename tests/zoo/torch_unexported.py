"""Modules that train, and that no program can be made of: each fails at another exporter."""

import torch
from torch import nn
from torch_tiny import TorchTinySpec


class Branching(nn.Linear):
    """Which way it goes depends on the values."""

    def forward(self, features):
        outputs = super().forward(features["x"])
        if outputs.sum() > 0:
            return outputs
        return 2 * outputs


class Airy(nn.Linear):
    """ONNX does not know one of its functions."""

    def forward(self, features):
        outputs = super().forward(features["x"])
        return outputs + torch.special.airy_ai(outputs.detach())


class UnexportedSpec(TorchTinySpec):
    def create_model(self, module="Branching"):
        return {"Branching": Branching, "Airy": Airy}[module](4, 1)
