"""The state of a coordinator that outlives it: `coordinator.json` in the job directory (D12b)."""

import logging
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.files.whole_file import read_json, write_json
from edl_horovod.job.json_fields import Format

__all__ = ["SavedRing", "load", "save", "save_change"]

log = logging.getLogger(__name__)

_HINT = (
    "It is unknown where the job's ring is now: end the job, and start it again; with resume=auto "
    "it goes on from its newest checkpoint."
)


@dataclass(frozen=True, kw_only=True)
class SavedRing:
    """Where the coordinator listens, and the ring that it formed last."""

    address: str
    port: int
    generation: int
    members: tuple[str, ...] = ()
    orders: tuple[int, ...] = ()
    """Ages of the members; without them a restart would assign the ranks again."""


_FORMAT = Format(SavedRing)


def load(path: Path) -> SavedRing | None:
    """What an earlier coordinator of the job saved; None for the first one.

    Raises:
        JobFailed: The file is damaged.
    """
    return read_json(path, _FORMAT.read, hint=_HINT)


def save(path: Path, ring: SavedRing) -> None:
    """Replace what was saved."""
    write_json(path, _FORMAT.write(ring))


def save_change(path: Path, ring: SavedRing) -> None:
    """Save if the disk allows it; only a coordinator that starts again needs the file."""
    try:
        save(path, ring)
    except OSError as error:
        log.warning("coordinator.json is that of an older ring: %s", error)
