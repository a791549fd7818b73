"""The regression of tests.records in PyTorch, with what tests ask for."""

import numpy as np
import torch
from torch import nn

from edl_horovod import ElasticDLSpec, Mode


def parse(records):
    """x and y of tests.records.example, and the numbers of the records."""
    x = [np.frombuffer(record[-31:-15], "<f4") for record in records]
    y = [np.frombuffer(record[-4:], "<f4") for record in records]
    return torch.tensor(np.array(x)), torch.tensor(np.array(y))


class Net(nn.Module):
    def __init__(self, *, dropout=0.0, batch_norm=False):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(8, 1)

    def forward(self, features):
        return self.output(self.dropout(torch.tanh(self.norm(self.hidden(features["x"])))))


class TorchTinySpec(ElasticDLSpec):
    def __init__(self, context=None, keep_every=1, bad_id=-1):
        super().__init__(context)
        self._keep_every, self._bad_id = keep_every, bad_id

    def create_model(self, dropout=0.0, batch_norm=False):
        return Net(dropout=dropout, batch_norm=batch_norm)

    def create_dataset(self, records, mode):
        x, y = parse(records)
        if mode is Mode.PREDICTION:
            return {"x": x}
        numbers = torch.tensor([number_of(record) for record in records])
        if self._bad_id in numbers.tolist():
            y[numbers == self._bad_id] = float("inf")
        kept = numbers % self._keep_every == 0
        return {"x": x[kept]}, y[kept]

    def create_loss(self, outputs, labels):
        return nn.functional.mse_loss(outputs, labels)

    def create_optimizer(self, model, lr=0.05, kind="Adam"):
        return getattr(torch.optim, kind)(model.parameters(), lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": (outputs - labels).abs()}


def number_of(record):
    """The number of a record, its feature `id`: a varint after that name's length and its own."""
    place = record.index(b"\x0a\x02id") + 4
    packed = record[place:]
    # Feature, list and values each have a tag and a length of one byte.
    start = 6
    value = shift = 0
    for byte in packed[start:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value
