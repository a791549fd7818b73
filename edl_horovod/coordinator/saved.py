"""The saved state of a coordinator, for its successor: `coordinator.json` in the job directory."""

import logging
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.files.whole_file import read_json, write_json
from edl_horovod.job.json_fields import Format

log = logging.getLogger(__name__)

_HINT = (
    "It is unknown where the job's ring is now: end the job, and start it again; with resume=auto "
    "it goes on from its newest checkpoint."
)


@dataclass(frozen=True, kw_only=True)
class SavedRing:
    """The address of the coordinator, and the last ring that it formed."""

    address: str
    port: int
    generation: int
    members: tuple[str, ...] = ()
    orders: tuple[int, ...] = ()
    """The members' `Candidate.order`; without it a restart would assign other ranks."""


_FORMAT = Format(SavedRing)


def load(path: Path) -> SavedRing | None:
    """Read the ring of the job's former coordinator; None if there was none.

    Raises:
        JobFailed: The file is damaged.
    """
    return read_json(path, _FORMAT.read, hint=_HINT)


def save(path: Path, ring: SavedRing) -> None:
    """Write the file, replacing a former one."""
    write_json(path, _FORMAT.write(ring))


def save_change(path: Path, ring: SavedRing) -> None:
    """Like `save`, but only log an error: the file is needed only if this process is restarted."""
    try:
        save(path, ring)
    except OSError as error:
        log.warning("coordinator.json is that of an older ring: %s", error)
