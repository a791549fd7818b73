"""Tells which digit a picture of 8x8 points shows."""

import torch
from torch import nn
from torch.nn import functional

from edl_horovod import ElasticDLSpec, Mode


class Network(nn.Module):
    """A dense network on the points."""

    def __init__(self, hidden_units):
        super().__init__()
        sizes = [64, *hidden_units]
        self.hidden = nn.ModuleList(map(nn.Linear, sizes, hidden_units))
        self.last = nn.Linear(sizes[-1], 10)

    def forward(self, image):
        x = image.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)


class Digits(ElasticDLSpec):
    """The data are arrays `image` and `label`."""

    def create_model(self, hidden_units=(64,)):
        return Network(hidden_units)

    def create_dataset(self, dataset, mode):
        return dataset["image"] if mode == Mode.PREDICTION else (dataset["image"], dataset["label"])

    def create_loss(self, outputs, labels):
        return functional.cross_entropy(outputs, labels)

    def create_optimizer(self, model, lr=0.003):
        return torch.optim.Adam(model.parameters(), lr)

    def create_metrics(self, outputs, labels):
        return {"accuracy": (outputs.argmax(1) == labels).float()}
