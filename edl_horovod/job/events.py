"""The job's event log, `events.jsonl`: the one source that every display reads.

One JSON object a line: `time` (seconds since the epoch), `source` (who wrote it), `kind`, then that
kind's own fields. Each line is one `write` to a file opened for appending, so lines of several
processes never mix. A line that a full disk or a killed writer cut short is passed over by readers,
and the next one starts on a line of its own.

A number that is not finite is null, here as in all JSON of ours.

Kinds and their fields:

- `job`: `state` (`starting`, `taken over`: by another launcher, `running`, `finished`, `failed`),
`task`, `message`, `total_steps`, `output`
- `worker`: `worker`, `state` (`started`, `warm`, `left`, `lost`, `failed`, `waiting`, `hung`),
`message`, `pid` (where it started or hung)
- `coordinator`: `pid` (it started)
- `generation`: `generation`, `size`, `members`, `reason`
- `reset`: `generation`, `old_size`, `new_size`, `step`, `records_seen`, `seconds`, `reason`
- `autoscale`: `limit` (most ranks of a ring from now on), `reason`
- `step` (the first of each ring and the job's last, others at most five a second): `step`, `epoch`,
`loss`, `records_per_second`, `records_seen`, `size`, `metrics`
- `evaluation`: `step`, `metrics`, `examples`
- `progress`: `records`, `total_records`, `size` (evaluate, predict)
- `checkpoint`: `state` (`written`, `failed`, `damaged`), `step`, `message`, `num_bytes`,
`seconds`
- `discovery`: `state` (`current`, `stale`: the API server does not answer), `message` (Kubernetes)
- `log`: `message`
"""

import errno
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edl_horovod.files import json_text

__all__ = ["EventLog", "Tail", "follow", "is_event", "read"]

log = logging.getLogger(__name__)


_TEXTS = frozenset({"kind", "source", "state", "task", "message", "output", "worker", "reason"})
_COUNTS = frozenset(
    {"step", "epoch", "size", "old_size", "new_size", "generation", "records", "total_records"}
    | {"total_steps", "records_seen", "made", "pid", "examples", "limit"}
)
_NUMBERS = frozenset({"loss", "records_per_second", "seconds"})
"""Null where they were not finite."""
_LAST_TIME = 253_402_300_800
"""The year 10000: what comes after it is no date."""
_MAX_COUNT = 1 << 63


def is_event(found: object) -> bool:
    """Whether what was read is an event whose known fields are what they must be.

    Everybody who can write into a job's directory or a pod's log can write lines there, and what
    shows events must not break by them.

    Args:
        found: A line, as JSON.
    """
    return (
        isinstance(found, dict)
        and "kind" in found
        and all(_is_sound(name, value) for name, value in found.items())
    )


def _is_sound(name: str, value: object) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name in _COUNTS:
        return isinstance(value, int) and abs(value) < _MAX_COUNT
    if name in _NUMBERS:
        return _is_number(value)
    if name == "time":
        return isinstance(value, int | float) and 0 <= value < _LAST_TIME
    if name == "members":
        return isinstance(value, list) and all(isinstance(member, str) for member in value)
    if name == "metrics":
        return isinstance(value, dict) and all(map(_is_number, value.values()))
    return True


def _is_number(value: object) -> bool:
    is_finite = isinstance(value, float) and math.isfinite(value)
    return value is None or is_finite or (isinstance(value, int) and abs(value) < _MAX_COUNT)


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

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event; where that fails, warn once until it succeeds again."""
        event = {"time": round(time.time(), 4), "source": self._source, "kind": kind, **fields}
        line = (json_text.dumps(event) + "\n").encode()
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

    def has(self, kind: str, **fields: Any) -> bool:
        """Whether anybody wrote such an event to this log; reads all of it.

        False where it cannot be read: the job goes on without it.
        """
        try:
            return any(
                event["kind"] == kind and fields.items() <= event.items()
                for event in Tail(self._path).new_events()
            )
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

    def new_events(self) -> Iterator[dict[str, Any]]:
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
                if line != b"\n":
                    yield from _parsed(line)


def _parsed(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if is_event(event):
        yield event
    else:
        log.debug("a damaged line in the event log: %r", line[:200])


def read(path: Path) -> list[dict[str, Any]]:
    """All whole events of a log, oldest first; empty where there is no log yet."""
    return list(Tail(path).new_events())


def follow(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the events since the last time, whenever it is asked; never blocks, never ends."""
    tail = Tail(path)
    while True:
        yield list(tail.new_events())
