"""The regression of tests.records in PyTorch, with what tests ask for."""

import torch
from torch import nn

from edl_horovod import ElasticDLSpec, Mode
from edl_horovod.records.examples import read_examples


def parse(records, **shapes):
    """Tensors of the features of these names and shapes, in their order."""
    return [torch.from_numpy(column) for column in read_examples(records, shapes).values()]


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
        if mode is Mode.PREDICTION:
            return {"x": parse(records, x=(4,))[0]}
        x, y, numbers = parse(records, x=(4,), y=(1,), id=())
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
