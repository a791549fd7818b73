"""The job's event log, `events.jsonl`: the one source that every display reads.

One JSON object a line: `time` (seconds since the epoch), `source` (who wrote it), `kind`, then that
kind's own fields, which are those of its class here. Each line is one `write` to a file opened for
appending, so lines of several processes never mix. A line that a full disk or a killed writer cut
short is passed over by readers, and the next one starts on a line of its own. So is a kind that
this version does not know, and so is a field.

A number that is not finite is null, here as in all JSON of ours.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from edl_horovod.files import json_text
from edl_horovod.job.json_fields import Format

__all__ = [
    "AutoscaleEvent",
    "CheckpointEvent",
    "CoordinatorEvent",
    "DiscoveryEvent",
    "EvaluationEvent",
    "Event",
    "EventLog",
    "GenerationEvent",
    "JobEvent",
    "LogEvent",
    "OnEvents",
    "ProgressEvent",
    "Recorded",
    "ResetEvent",
    "StepEvent",
    "Tail",
    "WorkerEvent",
    "fields_of",
    "follow",
    "line_of",
    "parse",
    "read",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened. A field that is None by default is in the log only where it is set."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind


@dataclass(frozen=True, kw_only=True)
class JobEvent(Event, kind="job"):
    """The job is in another state."""

    state: str
    """`starting`, `taken over` (by another launcher), `running`, `waiting`, `finished`, `failed`,
    `suspended`"""
    task: str | None = None
    message: str = ""
    steps: int | None = None
    metrics: dict[str, float] | None = None
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerEvent(Event, kind="worker"):
    """A worker is in another state."""

    worker: str
    """`host:slot`"""
    state: str
    """`started`, `warm`, `left`, `lost`, `failed`, `waiting`, `hung`"""
    message: str = ""
    pid: int | None = None
    """Where it started or hung."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorEvent(Event, kind="coordinator"):
    """A coordinator has started."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class GenerationEvent(Event, kind="generation"):
    """The coordinator has dealt the places of a ring."""

    generation: int
    size: int
    members: tuple[str, ...]
    """Workers in the order of their ranks."""
    reason: str
    is_formed: bool = False
    """Whether all members came into the ring."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ResetEvent(Event, kind="reset"):
    """A ring has formed and begins to work."""

    generation: int
    old_size: int
    """0 before the leader's first ring."""
    new_size: int
    step: int
    records_seen: int
    seconds: float
    """From the end of the leader's last step to the begin of the next."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class AutoscaleEvent(Event, kind="autoscale"):
    """The ring may have another number of ranks."""

    limit: int
    """Most ranks of a ring from now on."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event, kind="step"):
    """A step is done: the first of a ring, one that is evaluated, the last, and some others."""

    step: int
    total_steps: int
    """Steps of the whole job; an estimate where the batch grows with the ring."""
    epoch: int
    """Counted from 0."""
    loss: float | None
    """None where it was not finite."""
    records_per_second: float | None
    records_seen: int
    size: int
    """Ranks in the ring."""
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class EvaluationEvent(Event, kind="evaluation"):
    """The model was evaluated after a step."""

    step: int
    metrics: dict[str, float]
    examples: int


@dataclass(frozen=True, kw_only=True)
class ProgressEvent(Event, kind="progress"):
    """Where evaluate, predict or prepare is."""

    records: int
    """Records, or files of `prepare`."""
    total_records: int
    made: int | None = None
    """Records that `prepare` made."""
    size: int = 0
    """Ranks in the ring."""


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event, kind="checkpoint"):
    """A checkpoint was written, could not be written, or is damaged."""

    state: str
    """`written`, `failed`, `damaged`"""
    step: int
    message: str = ""
    num_bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class DiscoveryEvent(Event, kind="discovery"):
    """Host discovery in a cluster."""

    state: str
    """`current`, `stale` (the API server does not answer), `replaced` (a failed pod)"""
    message: str


@dataclass(frozen=True, kw_only=True)
class LogEvent(Event, kind="log"):
    """Something that people should read."""

    message: str


class Recorded(NamedTuple):
    """An event as the log has it."""

    time: float
    """Seconds since the epoch."""
    source: str
    """Who wrote it: `launcher`, `coordinator`, or a worker."""
    event: Event


OnEvents = Callable[[list[Recorded]], None]
"""Called with the job's new events."""


_LAST_TIME = 253_402_300_800
"""The year 10000: what comes after it is no date."""

_FORMATS = {event.kind: Format(event) for event in Event.__subclasses__()}
_decode = json.JSONDecoder().decode


def parse(line: bytes | str) -> Recorded | None:
    """The event in a line of a log; None for one that is damaged or of a kind not known here.

    Everybody who can write into a job's directory or a pod's log can write lines there, and what
    shows events must not break by them.
    """
    try:
        fields = _decode(line if isinstance(line, str) else line.decode())
        time, source = fields["time"], fields["source"]
        is_date = isinstance(time, int | float) and 0 <= time < _LAST_TIME
        if is_date and isinstance(source, str) and fields["kind"] in _FORMATS:
            return Recorded(time, source, _FORMATS[fields["kind"]].read(fields))
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    log.debug("a damaged line in the event log, or one of another version: %r", line[:200])
    return None


def line_of(recorded: Recorded) -> str:
    """The line of a log that holds an event; `parse` reads it."""
    time, source, event = recorded
    said = {"time": time, "source": source, "kind": event.kind, **fields_of(event)}
    return json_text.dumps(said) + "\n"


def fields_of(event: Event) -> dict[str, Any]:
    """An event's own fields, as a log has them."""
    return _FORMATS[event.kind].write(event)


class EventLog:
    """Appends events; close it, or use it in a `with`.

    Events are for those who watch: where they cannot be written, the job goes on without them.
    """

    def __init__(self, path: Path, source: str) -> None:
        """Open the log for appending.

        Args:
            path: The job's `events.jsonl`; made if it is not there.
            source: Stands in each event's `source`.
        """
        self._path = path
        self._source = source
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._is_failing = False

    def write(self, event: Event) -> None:
        """Append one event; where that fails, warn once until it succeeds again."""
        line = line_of(Recorded(round(time.time(), 4), self._source, event)).encode()
        try:
            if self._is_torn():
                line = b"\n" + line
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._is_failing:
                log.warning("%s cannot be written: %s; the job goes on unseen", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def write_once(self, event: Event) -> None:
        """Append an event unless the log has an equal one, from any process; reads all of it."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # Then two may write at once, which is no harm.
                # A forked process shares the locks of its parent's files, so this opens another.
                file = stack.enter_context(self._path.open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX)
            if not self.has(lambda other: other == event):
                self.write(event)

    def has(self, is_it: Callable[[Event], bool]) -> bool:
        """Whether anybody wrote such an event to this log; reads all of it.

        False where it cannot be read: the job goes on without it.
        """
        try:
            return any(is_it(event) for _, _, event in Tail(self._path).new_events())
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return False

    def _is_torn(self) -> bool:
        """Whether the last line lacks its end: its writer was killed, or the disk was full."""
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tail:
    """Whole lines of a growing file; a half-written last line waits for its end."""

    def __init__(self, path: Path) -> None:
        """Begin at the first line of a log, which need not be there yet."""
        self._path = path
        self._offset = 0

    def new_events(self) -> Iterator[Recorded]:
        """The whole events since the last time, read in parts: a log may be of any size."""
        try:
            stream = self._path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            return
        with stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                if line != b"\n" and (parsed := parse(line)) is not None:
                    yield parsed


def read(path: Path) -> list[Recorded]:
    """All whole events of a log, oldest first; empty where there is no log yet."""
    return list(Tail(path).new_events())


def follow(path: Path) -> Iterator[list[Recorded]]:
    """Yield the events since the last time, whenever it is asked; never blocks, never ends."""
    tail = Tail(path)
    while True:
        yield list(tail.new_events())
