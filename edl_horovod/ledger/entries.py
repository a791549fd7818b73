"""What stands in a ledger: four kinds of lines, one JSON object each.

A rank says when it is in a ring (`begin`), before a step's collective which records it gives to the
step (`give`), after it that the step is done (`done`), and when it leaves the ring (`leave`).
"""

import base64
import json
import math
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from edl_horovod.files import json_text
from edl_horovod.records.plan import Ids

__all__ = ["Begin", "Done", "Entry", "Give", "Leave", "decode", "encode", "key"]

_FIRST, _LAST = -1, 1 << 62
"""Where a ring's begin and end stand among its steps."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A rank is in a ring, and has taken over the ring's state."""

    ring: int
    """Tells rings apart over the whole job; a later ring of a rank has a higher number."""
    generation: int
    rank: int
    size: int
    step: int
    """Steps that are done in the ring's state."""
    own_step: int
    """Steps that were done in the rank's own state before; -1 for a newcomer."""
    digest: str
    """Of all variables."""


@dataclass(frozen=True, kw_only=True)
class Give:
    """A rank is about to give these records to a step, counted from 0 over all epochs."""

    ring: int
    step: int
    ids: Ids


@dataclass(frozen=True, kw_only=True)
class Done:
    """A step's collective succeeded on a rank, and its variables have changed."""

    ring: int
    step: int
    examples: int
    """Of the whole ring: what the user's pipeline made of the records."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class Leave:
    """A rank leaves a ring."""

    ring: int
    step: int
    """Steps that are done in the rank's state."""
    digest: str
    """Of all variables."""
    is_over: bool
    """Whether the job is done."""


Entry: TypeAlias = Begin | Give | Done | Leave

_KINDS: dict[str, type[Any]] = {"begin": Begin, "give": Give, "done": Done, "leave": Leave}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def key(entry: Entry) -> tuple[int, int]:
    """The order of entries; those of one file never go back in it."""
    if isinstance(entry, Begin):
        return entry.ring, _FIRST
    if isinstance(entry, Leave):
        return entry.ring, _LAST
    return entry.ring, entry.step


def encode(entry: Entry) -> bytes:
    """An entry as a line."""
    if isinstance(entry, Give):
        packed = np.asarray(entry.ids, "<i8").tobytes()
        fields: dict[str, Any] = {"ring": entry.ring, "step": entry.step}
        fields["ids"] = base64.b64encode(packed).decode()
    else:
        fields = asdict(entry)
    text = json_text.dumps({"kind": _NAMES[type(entry)], **fields}, separators=(",", ":"))
    return text.encode() + b"\n"


def decode(line: bytes) -> Entry | None:
    """The entry of a line; None for a damaged one: its writer was killed, or the disk was full."""
    try:
        fields = json.loads(line)
        kind = _KINDS[fields.pop("kind")]
        if kind is Give:
            packed = base64.b64decode(fields["ids"], validate=True)
            fields["ids"] = np.frombuffer(packed, "<i8").astype(np.int64)
        if fields.get("loss", 0.0) is None:
            fields["loss"] = math.nan  # A step without examples has none, and JSON has no NaN.
        entry: Entry = kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return entry
