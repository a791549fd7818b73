"""`table` in PyTorch: records are rows of a CSV file: note, x0, x1, y; the note is free text."""

import csv
import io

import torch
from torch import nn

from edl_horovod import ElasticDLSpec, Mode


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(2, 1)

    def forward(self, features):
        return self.output(features["x"])


def numbers(record):
    (row,) = csv.reader(io.StringIO(record.decode(), newline=""))
    return [float(cell) for cell in row[1:]]


class TorchTableSpec(ElasticDLSpec):
    def create_model(self):
        return Net()

    def create_dataset(self, records, mode):
        rows = torch.tensor([numbers(record) for record in records])
        features = {"x": rows[:, :2]}
        return features if mode is Mode.PREDICTION else (features, rows[:, 2:])

    def create_loss(self, outputs, labels):
        return nn.functional.mse_loss(outputs, labels)

    def create_optimizer(self, model, lr=0.1):
        return torch.optim.Adam(model.parameters(), lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": (outputs - labels).abs()}
