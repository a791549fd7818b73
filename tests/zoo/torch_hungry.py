"""`hungry` in PyTorch: it takes far more memory once in slot 1, as soon as a file is there."""

from pathlib import Path

import torch
from torch_paced import PacedSpec

PIECE_NUMBERS, NUM_PIECES = 4 << 20, 64
_held = []


class HungrySpec(PacedSpec):
    def __init__(self, context=None, meal=""):
        super().__init__(context)
        self._is_hungry = (context or {}).get("worker_id") == "1"
        self._meal = Path(meal)

    def create_loss(self, outputs, labels):
        if self._is_hungry and self._meal.exists():
            self._meal.unlink()
            # Written to, because memory that is only reserved is not there yet.
            _held.extend(torch.ones(PIECE_NUMBERS) for _ in range(NUM_PIECES))
        return super().create_loss(outputs, labels)
