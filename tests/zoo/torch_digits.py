"""Digits as in `digits`, without attention, in PyTorch."""

import torch
from torch import nn

from edl_horovod import ElasticDLSpec
from edl_horovod.records.examples import read_examples


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def forward(self, features):
        return super().forward(features["x"])


class TorchDigitsSpec(ElasticDLSpec):
    def create_model(self):
        return Net()

    def create_dataset(self, records, mode):
        examples = read_examples(records, {"x": (64,), "y": ()})
        return {"x": torch.from_numpy(examples["x"])}, torch.from_numpy(examples["y"])

    def create_loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels)

    def create_optimizer(self, model, lr=0.5):
        return torch.optim.SGD(model.parameters(), lr, momentum=0.9)

    def create_metrics(self, outputs, labels):
        return {"accuracy": (outputs.argmax(1) == labels).float()}
