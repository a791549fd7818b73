"""`counting` in PyTorch: weights that count how often each record was applied."""

import torch
from pauses import PausingSpec
from torch import nn
from torch_tiny import parse

from edl_horovod import Mode


class Counter(nn.Module):
    def __init__(self, num_records, num_clocks):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(num_records))
        self.clocks = nn.ParameterList(torch.zeros(()) for _ in range(num_clocks))

    def between(self, counts):
        return counts

    def forward(self, features):
        counts = self.between(self.counts[features["id"]])
        for clock in self.clocks:
            counts = counts + clock
        return counts


class TorchCountingSpec(PausingSpec):
    def create_model(self):
        return Counter(self._num_records, self._num_clocks)

    def create_dataset(self, records, mode):
        self._pauses.wait()
        (numbers,) = parse(records, id=())
        numbers = numbers[numbers % self._keep_every == 0]
        return {"id": numbers} if mode is Mode.PREDICTION else ({"id": numbers}, numbers)

    def create_loss(self, outputs, labels):
        return -outputs.mean()

    def create_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), self._rate)

    def create_metrics(self, mode, outputs, labels):
        return {"mean_id": labels.float()}
