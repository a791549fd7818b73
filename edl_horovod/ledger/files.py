"""The files of a ledger: each worker process writes its own, and a reader merges them in order.

An entry is one line with a JSON object. A rank writes `begin` when it has joined a ring, `give`
with the records of a step before the step's collective, `done` after the collective, and `leave`
when it leaves the ring.
"""

import base64
import heapq
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from edl_horovod.errors import JobFailed, OutputError, hint_of
from edl_horovod.files import json_text
from edl_horovod.records.plan import Ids

log = logging.getLogger(__name__)

_FIRST, _LAST = -1, 1 << 62
"""Sort keys of a ring's begin and end among its steps."""
SETTLE_SECONDS = 5.0
"""How long `read` waits for a moment at which nothing is written."""

MOST_PENDING_BYTES = 64 << 20
"""Entries that wait in memory while the disk is full; what comes after them is lost."""


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
        ids = base64.b64encode(packed).decode()
        fields: dict[str, Any] = {"ring": entry.ring, "step": entry.step, "ids": ids}
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
        return cast(Entry, kind(**fields))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


class LedgerFile:
    """Appends the entries of one process; they survive the end of the process.

    Training goes on where they cannot be written: they wait in memory until there is room again.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        """Create the file.

        Args:
            folder: The ledger's folder; it is made if it does not exist.
            worker: `host:slot`, which becomes part of the file's name.

        Raises:
            OutputError: The file cannot be created.
        """
        # The time first: the files' order is about that of their entries.
        name = f"{time.time_ns()}.{worker.replace('/', '_')}.{os.getpid()}.jsonl"
        self._path = folder / name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, flags, 0o644)
        except OSError as error:
            problem = f"The ledger cannot be written in {folder}: {error}."
            hint = f"{hint_of(error)} Or set debug.ledger=false."
            raise OutputError(problem, received="debug.ledger=true", hint=hint) from error
        self._pending = bytearray()
        self._is_failing = self._has_gap = False

    def write(self, entry: Entry) -> None:
        """Append an entry, after those that could not be written before."""
        line = encode(entry)
        if len(self._pending) + len(line) <= MOST_PENDING_BYTES:
            self._pending += line
        else:
            self._note_gap()
        self._flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            self._flush()
            if self._pending:
                self._note_gap()
            os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        try:
            while self._pending:
                del self._pending[: os.write(self._file, self._pending)]
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("%s cannot be written: %s; entries wait for room", self._path, error)
            self._is_failing = True

    def _note_gap(self) -> None:
        if not self._has_gap:
            log.warning("%s lacks entries that could not be written", self._path)
        self._has_gap = True


@dataclass
class Source:
    """A file that is being read."""

    path: Path
    num_bytes: int
    """Length at which reading stops."""
    num_damaged: int = field(default=0, init=False)
    """Number of damaged lines."""


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """A step that was done."""

    step: int
    """Counted from 0 over all epochs."""
    loss: float
    """Mean over the step's examples on all ranks."""
    size: int
    """Ranks of the ring that did it."""


def read(folder: Path) -> Iterator[tuple[Source, Entry]]:
    """Read all entries, ordered by ring and step; a file is open only while its entries are due.

    Args:
        folder: The ledger's folder. If the job still runs, the entries of one moment are read.

    Raises:
        JobFailed: The job writes faster than its files can be listed.
    """
    sources = [Source(path, num_bytes) for path, num_bytes in sorted(_moment(folder).items())]
    return heapq.merge(*map(_entries, sources), key=lambda pair: key(pair[1]))


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


def _moment(folder: Path) -> dict[Path, int]:
    """The lengths of all files at one moment: two listings in a row agree."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before: dict[Path, int] | None = None
    while time.monotonic() < deadline:
        now = {path: path.stat().st_size for path in folder.glob("*.jsonl")}
        if now == before:
            return now
        before = now
    problem = f"The ledger in {folder} changes too fast to be read."
    hint = "Wait for the end of the job."
    raise JobFailed(problem, received=f"{len(before or {})} files", hint=hint)


def _entries(source: Source) -> Iterator[tuple[Source, Entry]]:
    """Yield the entries of a file, which is closed after the first entry and opened again.

    `heapq.merge` takes the first entry of every file before any second one, so otherwise all files
    would be open at once.
    """
    first_entry = next(_decoded_lines(source), None)
    if first_entry is None:
        return
    yield source, first_entry
    source.num_damaged = 0  # The second pass counts all damaged lines.
    entries = _decoded_lines(source)
    next(entries)
    for entry in entries:
        yield source, entry


def _decoded_lines(source: Source) -> Iterator[Entry]:
    with source.path.open("rb") as stream:
        left = source.num_bytes
        while left > 0 and (line := stream.readline(left)):
            left -= len(line)
            entry = decode(line)
            if entry is not None:
                yield entry
            elif line.strip():
                source.num_damaged += 1
