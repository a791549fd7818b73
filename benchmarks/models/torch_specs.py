"""The models of `torch_network.py` as specs, on NumPy's arrays of pictures."""

# The methods are described by `ElasticDLSpec`, the networks in `torch_network.py`.
# ruff: noqa: D101, D102

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.torch_network import MODELS
from edl_horovod import ElasticDLSpec, Mode


class CnnSpec(ElasticDLSpec):
    name = "small"

    def create_model(self) -> nn.Module:
        return MODELS[self.name][0]()

    def create_dataset(self, dataset: Any, mode: Mode) -> Any:
        features = dataset["image"].float() / 255
        return features if mode is Mode.PREDICTION else (features, dataset["label"])

    def create_loss(self, outputs: Any = None, labels: Any = None) -> torch.Tensor:
        return functional.cross_entropy(outputs, labels)

    def create_optimizer(self, model: Any = None, lr: float | None = None) -> torch.optim.Optimizer:
        _, optimizer, usual = MODELS[self.name]
        return optimizer(model.parameters(), lr or usual)


class ConvSpec(CnnSpec):
    name = "conv"


class ResNetSpec(CnnSpec):
    name = "resnet"


class DenseSpec(CnnSpec):
    name = "dense"


class MlpSpec(CnnSpec):
    name = "mlp"


class MiddleSpec(CnnSpec):
    name = "middle"


class TransformerSpec(CnnSpec):
    name = "transformer"
