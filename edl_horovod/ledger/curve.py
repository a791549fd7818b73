"""The loss curve of a job, step by step, from its ledger."""

from dataclasses import dataclass
from pathlib import Path

from edl_horovod.ledger.entries import Begin, Done
from edl_horovod.ledger.files import read

__all__ = ["StepLoss", "read_losses"]


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """A step that was done."""

    step: int
    """Counted from 0 over all epochs."""
    loss: float
    """Mean over the step's examples on all ranks."""
    size: int
    """Ranks of the ring that did it."""


def read_losses(folder: Path) -> list[StepLoss]:
    """Read the losses of all steps in order; for a step that was done again, the last one.

    Raises:
        JobFailed: The job writes faster than the files can be listed.
    """
    sizes: dict[int, int] = {}
    losses: dict[int, StepLoss] = {}
    for _, entry in read(folder):
        if isinstance(entry, Begin):
            sizes[entry.ring] = entry.size
        elif isinstance(entry, Done) and entry.ring in sizes:
            size = sizes[entry.ring]
            losses[entry.step] = StepLoss(step=entry.step, loss=entry.loss, size=size)
    return [losses[step] for step in sorted(losses)]
