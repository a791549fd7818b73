"""`paced` in PyTorch: the tiny model, with steps so slow that each one shows in the events."""

import time

from torch_tiny import TorchTinySpec

STEP_SECONDS = 0.25
RECORD_SECONDS = 0.02


class PacedSpec(TorchTinySpec):
    def create_loss(self, outputs, labels):
        time.sleep(STEP_SECONDS)
        return super().create_loss(outputs, labels)


class PerRecordSpec(TorchTinySpec):
    """Steps that take as long as a rank has records: twice the ranks, half the time."""

    def create_loss(self, outputs, labels):
        time.sleep(RECORD_SECONDS * len(labels))
        return super().create_loss(outputs, labels)
