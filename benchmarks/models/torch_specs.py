"""The models of `torch_network.py` as specs, on the arrays of `benchmarks.arrays`."""

# The methods are described by `ElasticDLSpec`.

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.torch_network import MODELS
from edl_horovod import ElasticDLSpec, Mode


class _Spec(ElasticDLSpec):
    name: str

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


class ConvSpec(_Spec):
    """8 convolutions, 2 dense layers."""

    name = "conv"


class ResNetSpec(_Spec):
    """ResNet-50."""

    name = "resnet"


class DenseSpec(_Spec):
    """Dense layers alone, with Adam."""

    name = "dense"


class CnnSpec(_Spec):
    """2 convolutions, 2 dense layers."""

    name = "small"


class MlpSpec(_Spec):
    """Three small dense layers."""

    name = "mlp"


class MiddleSpec(_Spec):
    """3 convolutions, 2 dense layers."""

    name = "middle"
