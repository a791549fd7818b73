"""`table` in PyTorch: records are rows of a CSV file: note, x0, x1, y; the note is free text."""

import csv
import io

import torch
from torch import nn
from torch_tiny import TorchTinySpec

from edl_horovod import Mode


class Net(nn.Linear):
    def forward(self, features):
        return super().forward(features["x"])


def numbers(record):
    (row,) = csv.reader(io.StringIO(record.decode(), newline=""))
    return [float(cell) for cell in row[1:]]


class TorchTableSpec(TorchTinySpec):
    def create_model(self):
        return Net(2, 1)

    def create_dataset(self, records, mode):
        rows = torch.tensor([numbers(record) for record in records])
        features = {"x": rows[:, :2]}
        return features if mode is Mode.PREDICTION else (features, rows[:, 2:])

    def create_optimizer(self, model, lr=0.1):
        return torch.optim.Adam(model.parameters(), lr)
