"""`hanging` in PyTorch."""

from both_hanging import Hangs
from torch_counting import TorchCountingSpec


class TorchHangingSpec(Hangs, TorchCountingSpec):
    def create_dataset(self, records, mode):
        self._wait("input")
        return super().create_dataset(records, mode)

    def create_loss(self, outputs, labels):
        self._wait("forward")
        return super().create_loss(outputs, labels)

    def _between(self, counts):
        if counts.requires_grad:
            counts.register_hook(lambda _: self._wait("backward"))
        return counts
