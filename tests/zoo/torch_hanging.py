"""`hanging` in PyTorch: the counting model, with places at which one worker can be made to hang."""

import ctypes
import time
from pathlib import Path

from torch_counting import TorchCountingSpec

POLL_SECONDS = 0.05
LOCK_SECONDS = 60


class TorchHangingSpec(TorchCountingSpec):
    def __init__(self, context=None, hang_in="", **kwargs):
        super().__init__(context, **kwargs)
        self._folder = Path(hang_in)
        self._slot = (context or {}).get("worker_id", "0")

    def create_model(self):
        self._wait("build")
        model = super().create_model()
        model.between = self._between
        return model

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

    def _wait(self, where):
        if (self._folder / f"lock-{self._slot}").exists():
            ctypes.PyDLL(None).sleep(LOCK_SECONDS)
        file = self._folder / f"{where}-{self._slot}"
        if file.exists():
            file.with_suffix(".reached").touch()
        while file.exists():
            time.sleep(POLL_SECONDS)
