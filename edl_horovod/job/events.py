"""The job's event log, `events.jsonl`, which every display reads.

Each line is a JSON object: `time` (seconds since the epoch), `source` (the process that wrote it),
`kind`, and the fields of that kind's class. A line is a single `write` to a file that is opened for
appending, so lines of several processes of a machine never mix. On NFS those of two machines may
overwrite each other. Readers skip a line that is damaged, or that a full disk or a killed writer
cut short, and the next writer starts a new line. Readers also skip kinds and fields that this
version does not know.

A number that is not finite is null, as in all JSON of this package.
"""

import contextlib
import errno
import fcntl
import itertools
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
    "AccountEvent",
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
    "PrivacyEvent",
    "ProgressEvent",
    "Recorded",
    "ResetEvent",
    "Span",
    "StepEvent",
    "SummaryEvent",
    "Tail",
    "TraceEvent",
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
    """Something that happened. Fields whose default is None are in the log only if they are set."""

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
    """`started`, `warm`, `left`, `lost`, `returned` (only its connection was lost), `failed`,
    `waiting`, `hung`"""
    message: str = ""
    pid: int | None = None
    """The process id, for `started` and `hung`."""
    seconds: float | None = None
    """Time without progress, for `hung`."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorEvent(Event, kind="coordinator"):
    """A coordinator has started."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class GenerationEvent(Event, kind="generation"):
    """The coordinator has assigned the ranks of a ring."""

    generation: int
    size: int
    members: tuple[str, ...]
    """Workers in the order of their ranks."""
    reason: str
    is_formed: bool = False
    """Whether all members came into the ring."""
    seconds: float = 0.0
    """From the coordinator's decision to the formed ring; 0 for a static ring."""


@dataclass(frozen=True, kw_only=True)
class ResetEvent(Event, kind="reset"):
    """A ring has formed and begins to work."""

    generation: int
    old_size: int
    """0 before the leader's first ring: that of the job, or the first after all ranks were lost."""
    new_size: int
    step: int
    records_seen: int
    seconds: float
    """From the end of the leader's last step to the beginning of its next step."""
    reason: str
    join_seconds: float | None = None
    """Those of them until the leader was in the formed ring; then it got or sent the state."""


@dataclass(frozen=True, kw_only=True)
class AutoscaleEvent(Event, kind="autoscale"):
    """The maximum number of ranks has changed."""

    limit: int
    """Most ranks of a ring from now on."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event, kind="step"):
    """A step is done: the first of a ring, one with an evaluation, the last, and some others."""

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
    local_steps: int | None = None
    """Local steps that the rank which writes the event did in a round; None without rounds."""


@dataclass(frozen=True, kw_only=True)
class EvaluationEvent(Event, kind="evaluation"):
    """The model was evaluated after a step."""

    step: int
    metrics: dict[str, float]
    examples: int
    parties: dict[str, dict[str, float]] | None = None
    """The metrics of the parties that share them (`federated.share_metrics`), by name."""


@dataclass(frozen=True, kw_only=True)
class ProgressEvent(Event, kind="progress"):
    """The progress of evaluate, predict or prepare."""

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
class PrivacyEvent(Event, kind="privacy"):
    """A party with `federated.privacy` begins to compute a round."""

    step: int
    """The round, counted from 1."""
    epsilon: float
    """What the party has used up, with this round."""
    delta: float
    passes: int
    """Passes over its records, this round's included."""


@dataclass(frozen=True, kw_only=True)
class DiscoveryEvent(Event, kind="discovery"):
    """Host discovery in a cluster."""

    state: str
    """`current`, `stale` (the API server does not answer), `replaced` (a failed pod)"""
    message: str


@dataclass(frozen=True, kw_only=True)
class AccountEvent(Event, kind="account"):
    """Where the time of a worker's process went, from its begin until now."""

    pid: int
    began: float
    """The process' begin, in seconds since the epoch."""
    seconds: dict[str, float]
    """Seconds by cause; `edl_horovod.job.account` names the causes."""
    doing: str = ""
    """The cause that continues; empty for the last account of a process."""
    steps: int | None = None
    """Steps that the process has done."""
    age: float | None = None
    """Seconds since the process' begin, by a monotonic clock."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that a rank did."""

    name: str
    """`step 7`, `exchange of step 7`, `examples of step 8`, ..."""
    began: float
    """Seconds since the epoch."""
    seconds: float
    num_bytes: int | None = None
    """Size of what an exchange sums; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class TraceEvent(Event, kind="trace"):
    """What a rank did last; each rank writes it where its ring breaks, or a rank of it hangs."""

    generation: int
    """The ring."""
    reason: str
    doing: str
    """`works` (the others wait for it), `waits` (in a collective), `joins` or `unwatched`"""
    phase: str
    """The same for people: `step 7`."""
    seconds: float
    """How long it did so."""
    place: str = ""
    """Where in the user's code a rank that works is; empty where it is in none."""
    stack: tuple[str, ...] = ()
    """Calls of its main thread, the innermost last."""
    last: tuple[Span, ...] = ()
    """What it did before, the newest last."""


@dataclass(frozen=True, kw_only=True)
class SummaryEvent(Event, kind="summary"):
    """The facts of all earlier events, for readers of the end of a launcher pod's log.

    It reports nothing new. Each field has the name and the meaning of that of `JobState`.
    """

    state: str
    task: str
    message: str
    output: str
    step: int
    total_steps: int
    epoch: int
    loss: float | None
    records: int
    total_records: int
    generation: int
    size: int
    """Ranks in the ring."""
    members: tuple[str, ...]
    """Workers of the ring that was formed last, in the order of their ranks."""
    num_resets: int
    metrics: dict[str, float]
    parties: dict[str, dict[str, float]]


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
"""The year 10000; later times are not valid dates."""

_LEAST_ROOM_BYTES = 1 << 20
_FIRST_BYTES = 4096
"""A longer first line is compared up to here."""
_MOST_AT_ONCE = 10_000
_FORMATS = {event.kind: Format(event) for event in Event.__subclasses__()}
_decode = json.JSONDecoder().decode


def parse(line: bytes | str) -> Recorded | None:
    """The event in a line of a log; None for a damaged line or an unknown kind.

    Anyone who can write to a job's directory or a pod's log can write lines there, and displays
    must not fail because of them.
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
    fields = {"time": time, "source": source, "kind": event.kind, **fields_of(event)}
    return json_text.dumps(fields) + "\n"


def fields_of(event: Event) -> dict[str, Any]:
    """The fields of an event in a log, without time, source and kind."""
    return _FORMATS[event.kind].write(event)


class EventLog:
    """Appends events; close it, or use it in a `with`.

    Events are only for displays: if they cannot be written, the job goes on without them.
    """

    def __init__(self, path: Path, source: str) -> None:
        """Open the log for appending.

        Args:
            path: The job's `events.jsonl`; created if it does not exist.
            source: The `source` of each event.
        """
        self._path = path
        self._source = source
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._is_failing = False

    def write(self, event: Event, *, at: float | None = None) -> None:
        """Append one event; where that fails, warn once until it succeeds again.

        Args:
            event: The event.
            at: When it was, in seconds since the epoch; None for now.
        """
        when = round(time.time() if at is None else at, 4)
        line = line_of(Recorded(when, self._source, event)).encode()
        try:
            if self._is_torn():
                line = b"\n" + line
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._is_failing:
                log.warning(
                    "%s cannot be written: %s; the job goes on without it", self._path, error
                )
            self._is_failing = True
        else:
            self._is_failing = False

    def has_room(self) -> bool:
        """Whether the disk has room for events that can be missing; the last is for all others."""
        try:
            disk = os.fstatvfs(self._file)
        except OSError:
            return True
        return disk.f_bavail * disk.f_frsize >= _LEAST_ROOM_BYTES

    def write_once(self, event: Event) -> None:
        """Append an event unless any process wrote an equal one; reads the whole log."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # Without a lock, two may write; that is harmless.
                # A forked process shares the locks of its parent's files, so open the file again.
                file = stack.enter_context(self._path.open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX)
            if not self.has(lambda other: other == event):
                self.write(event)

    def has(self, predicate: Callable[[Event], bool]) -> bool:
        """Whether the log has an event that satisfies the predicate; reads the whole log.

        False if the log cannot be read: the job goes on without it.
        """
        try:
            return any(predicate(event) for _, _, event in Tail(self._path).new_events())
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return False

    def _is_torn(self) -> bool:
        """Whether the last line is incomplete: its writer was killed, or the disk was full."""
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
    """Reads the events of a growing log; an incomplete last line is read when it is complete."""

    def __init__(self, path: Path) -> None:
        """Start at the first line of a log, which does not have to exist yet."""
        self._path = path
        self._offset = 0
        self._first_line = b""

    def begins_again(self) -> bool:
        """Whether the path has another log than at the last call, as that of a new job.

        Then `new_events` starts at its first line.
        """
        try:
            with self._path.open("rb") as stream:
                line = stream.readline(_FIRST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            line = b""
        is_complete = line.endswith(b"\n") or len(line) == _FIRST_BYTES
        first_line = line if is_complete else b""
        if first_line == self._first_line:
            return False
        self._first_line, self._offset = first_line, 0
        return True

    def new_events(self, *, having: bytes = b"") -> Iterator[Recorded]:
        """The events since the last call, read line by line: a log may be of any size.

        Args:
            having: Only those whose lines have this text, which saves parsing the others.
        """
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
                if line == b"\n" or having not in line:
                    continue
                if (parsed := parse(line)) is not None:
                    yield parsed


def read(path: Path) -> list[Recorded]:
    """All events of a log, oldest first; empty where there is no log yet."""
    return list(Tail(path).new_events())


def follow(path: Path) -> Iterator[list[Recorded]]:
    """Yield new events at each `next`; never blocks, never ends.

    At most `_MOST_AT_ONCE` come together: a launcher that takes over a job of many days must not
    need memory for all of its events.
    """
    tail = Tail(path)
    while True:
        yield list(itertools.islice(tail.new_events(), _MOST_AT_ONCE))
