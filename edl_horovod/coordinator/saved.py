"""What of a job outlives its coordinator: `coordinator.json` in the job directory (D12b)."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edl_horovod.whole_file import write_json

__all__ = ["SavedRing", "load", "save"]


@dataclass(frozen=True, kw_only=True)
class SavedRing:
    """Where the coordinator listens, and the ring that it formed last."""

    address: str
    port: int
    generation: int
    members: tuple[str, ...] = ()
    orders: tuple[int, ...] = ()
    """Ages of the members; without them a restart would deal the ranks anew."""


def load(path: Path) -> SavedRing | None:
    """What an earlier coordinator of the job saved; None for the first one."""
    try:
        state = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return SavedRing(
        **{**state, "members": tuple(state["members"]), "orders": tuple(state["orders"])}
    )


def save(path: Path, ring: SavedRing) -> None:
    """Replace what was saved."""
    write_json(path, asdict(ring))
