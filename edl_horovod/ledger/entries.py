"""The four kinds of entries in a ledger; each is one line with a JSON object.

A rank writes `begin` when it has joined a ring, `give` with the records of a step before the step's
collective, `done` after the collective, and `leave` when it leaves the ring.
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
"""Sort keys of a ring's begin and end among its steps."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A rank has joined a ring and has the ring's state."""

    ring: int
    """Number of the ring within the job; later rings of a rank have higher numbers."""
    generation: int
    rank: int
    size: int
    step: int
    """Number of steps in the ring's state."""
    own_step: int
    """Number of steps in the rank's own state before that; -1 for a new rank."""
    digest: str
    """A digest of all variables."""
    records: int = 0
    """Records that the state's steps took, over all epochs; older ledgers do not say. Of matter
    where the batch grows with the ring."""


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
    """Examples of the whole ring that the user's pipeline made from the records."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class Leave:
    """A rank leaves a ring."""

    ring: int
    step: int
    """Number of steps in the rank's state."""
    digest: str
    """A digest of all variables."""
    is_over: bool
    """Whether the job is done."""


Entry: TypeAlias = Begin | Give | Done | Leave

_KINDS: dict[str, type[Any]] = {"begin": Begin, "give": Give, "done": Done, "leave": Leave}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def key(entry: Entry) -> tuple[int, int]:
    """Sort key of an entry; it never decreases within a file."""
    if isinstance(entry, Begin):
        return entry.ring, _FIRST
    if isinstance(entry, Leave):
        return entry.ring, _LAST
    return entry.ring, entry.step


def encode(entry: Entry) -> bytes:
    """Encode an entry as a line."""
    if isinstance(entry, Give):
        packed = np.asarray(entry.ids, "<i8").tobytes()
        fields: dict[str, Any] = {"ring": entry.ring, "step": entry.step}
        fields["ids"] = base64.b64encode(packed).decode()
    else:
        fields = asdict(entry)
    text = json_text.dumps({"kind": _NAMES[type(entry)], **fields}, separators=(",", ":"))
    return text.encode() + b"\n"


def decode(line: bytes) -> Entry | None:
    """Decode a line; None if it is damaged because its writer was killed or the disk was full."""
    try:
        fields = json.loads(line)
        kind = _KINDS[fields.pop("kind")]
        if kind is Give:
            packed = base64.b64decode(fields["ids"], validate=True)
            fields["ids"] = np.frombuffer(packed, "<i8").astype(np.int64)
        if fields.get("loss", 0.0) is None:
            # A step without examples has no loss, and JSON cannot represent NaN.
            fields["loss"] = math.nan
        entry: Entry = kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return entry
