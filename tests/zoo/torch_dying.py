"""`dying` in PyTorch: its worker is killed at the step that holds one record."""

import os
import signal

import torch
from torch_tiny import TorchTinySpec


class DyingSpec(TorchTinySpec):
    def create_loss(self, outputs, labels):
        if not torch.isfinite(labels).all():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create_loss(outputs, labels)
