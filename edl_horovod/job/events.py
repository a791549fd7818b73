"""The job's event log, `events.jsonl`: the one source that every display reads.

One JSON object a line: `time` (seconds since the epoch), `source` (who wrote it), `kind`, then that
kind's own fields, which are those of its class here. Each line is one `write` to a file opened for
appending, so lines of several processes never mix. A line that a full disk or a killed writer cut
short is passed over by readers, and the next one starts on a line of its own. So is a kind that
this version does not know, and so is a field.

A number that is not finite is null, here as in all JSON of ours.
"""

import dataclasses
import errno
import json
import logging
import math
import os
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from edl_horovod.files import json_text

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


@dataclass(frozen=True, kw_only=True)
class JobEvent(Event):
    """The job is in another state."""

    kind = "job"

    state: str
    """`starting`, `taken over` (by another launcher), `running`, `waiting`, `finished`, `failed`,
    `suspended`"""
    task: str | None = None
    message: str = ""
    steps: int | None = None
    metrics: dict[str, float] | None = None
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerEvent(Event):
    """A worker is in another state."""

    kind = "worker"

    worker: str
    """`host:slot`"""
    state: str
    """`started`, `warm`, `left`, `lost`, `failed`, `waiting`, `hung`"""
    message: str = ""
    pid: int | None = None
    """Where it started or hung."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorEvent(Event):
    """A coordinator has started."""

    kind = "coordinator"

    pid: int


@dataclass(frozen=True, kw_only=True)
class GenerationEvent(Event):
    """The coordinator has dealt the places of a ring."""

    kind = "generation"

    generation: int
    size: int
    members: tuple[str, ...]
    """Workers in the order of their ranks."""
    reason: str
    is_formed: bool = False
    """Whether all members came into the ring."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ResetEvent(Event):
    """A ring has formed and begins to work."""

    kind = "reset"

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
class AutoscaleEvent(Event):
    """The ring may have another number of ranks."""

    kind = "autoscale"

    limit: int
    """Most ranks of a ring from now on."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """A step is done: the first of each ring, the job's last, and at most five a second."""

    kind = "step"

    step: int
    total_steps: int
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
class EvaluationEvent(Event):
    """The model was evaluated after a step."""

    kind = "evaluation"

    step: int
    metrics: dict[str, float]
    examples: int


@dataclass(frozen=True, kw_only=True)
class ProgressEvent(Event):
    """Where evaluate, predict or prepare is."""

    kind = "progress"

    records: int
    """Records, or files of `prepare`."""
    total_records: int
    made: int | None = None
    """Records that `prepare` made."""
    size: int = 0
    """Ranks in the ring."""


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event):
    """A checkpoint was written, could not be written, or is damaged."""

    kind = "checkpoint"

    state: str
    """`written`, `failed`, `damaged`"""
    step: int
    message: str = ""
    num_bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class DiscoveryEvent(Event):
    """Host discovery in a cluster."""

    kind = "discovery"

    state: str
    """`current`, `stale` (the API server does not answer), `replaced` (a failed pod)"""
    message: str


@dataclass(frozen=True, kw_only=True)
class LogEvent(Event):
    """Something that people should read."""

    kind = "log"

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


class _Damaged(Exception):
    """A field is missing, or is not what it must be."""


_LAST_TIME = 253_402_300_800
"""The year 10000: what comes after it is no date."""
_MAX_COUNT = 1 << 63


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _Damaged


def _count(value: object) -> int:
    if isinstance(value, int) and -_MAX_COUNT < value < _MAX_COUNT:
        return value
    raise _Damaged


def _number(value: object) -> float:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _Damaged
    return _count(value)


def _number_or_null(value: object) -> float | None:
    return None if value is None else _number(value)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _Damaged


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(map(_text, value))
    raise _Damaged


def _metrics(value: object) -> dict[str, float]:
    if isinstance(value, dict):
        return {
            name: math.nan if number is None else _number(number) for name, number in value.items()
        }
    raise _Damaged


_CHECKS: dict[Any, Callable[[object], Any]] = {
    str: _text,
    str | None: _text,
    int: _count,
    int | None: _count,
    float: _number,
    float | None: _number_or_null,
    bool: _flag,
    tuple[str, ...]: _names,
    dict[str, float]: _metrics,
    dict[str, float] | None: _metrics,
}


class _Format:
    """How the lines of one kind are read and written, found once for its class."""

    def __init__(self, event: type[Event]) -> None:
        types, fields = typing.get_type_hints(event), dataclasses.fields(event)
        self._event = event
        self._checks = [(field.name, _CHECKS[types[field.name]]) for field in fields]
        self._defaults = {
            field.name: field.default
            for field in fields
            if field.default is not dataclasses.MISSING
        }
        self.left_out = {name for name, default in self._defaults.items() if default is None}
        """Fields that are not written where they are None."""

    def read(self, found: dict[str, Any]) -> Event:
        """The event in a line.

        Raises:
            _Damaged: A field is not what it must be.
            KeyError: One is missing.
        """
        # As the class's own `__init__` does, which takes three times as long for each field.
        event = object.__new__(self._event)
        values, defaults = event.__dict__, self._defaults
        for name, check in self._checks:
            if name in defaults and name not in found:
                values[name] = defaults[name]
            else:
                values[name] = check(found[name])
        return event


_FORMATS = {event.kind: _Format(event) for event in Event.__subclasses__()}
_decode = json.JSONDecoder().decode


def parse(line: bytes | str) -> Recorded | None:
    """The event in a line of a log; None for one that is damaged or of a kind not known here.

    Everybody who can write into a job's directory or a pod's log can write lines there, and what
    shows events must not break by them.

    Args:
        line: Whole.
    """
    try:
        found = _decode(line if isinstance(line, str) else line.decode())
        time, source = found["time"], found["source"]
        is_date = isinstance(time, int | float) and 0 <= time < _LAST_TIME
        if is_date and isinstance(source, str) and found["kind"] in _FORMATS:
            return Recorded(time, source, _FORMATS[found["kind"]].read(found))
    except (ValueError, LookupError, TypeError, RecursionError, _Damaged):
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
    left_out = _FORMATS[event.kind].left_out
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(event).items()
        if value is not None or name not in left_out
    }


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

    def has(self, is_it: Callable[[Event], bool]) -> bool:
        """Whether anybody wrote such an event to this log; reads all of it.

        False where it cannot be read: the job goes on without it.

        Args:
            is_it: Whether an event is one of those.
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
        """Begin at the first line.

        Args:
            path: The job's `events.jsonl`; it need not be there yet.
        """
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
                if line != b"\n" and (found := parse(line)) is not None:
                    yield found


def read(path: Path) -> list[Recorded]:
    """All whole events of a log, oldest first; empty where there is no log yet."""
    return list(Tail(path).new_events())


def follow(path: Path) -> Iterator[list[Recorded]]:
    """Yield the events since the last time, whenever it is asked; never blocks, never ends."""
    tail = Tail(path)
    while True:
        yield list(tail.new_events())
