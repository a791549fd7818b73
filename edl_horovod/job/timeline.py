"""The timeline of a job (`debug.timeline`): what each rank did when, as one file for Perfetto.

Each process of a rank writes its spans to a file of its own while it works. When the job has ended,
its launcher makes one trace of them, in Chrome's JSON format.

Times of a process are those of its monotonic clock, and the trace has the coordinator's clock. A
worker answers the coordinator's pings, so it knows when it sent an answer, when the coordinator
received that and sent the next ping, and when that arrived. The mean of the differences of the two
ways is the offset of the clocks, as in NTP; the exchange that took the least time counts. A process
without a coordinator is placed by its host's own clock.
"""

import contextlib
import errno
import json
import logging
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_horovod.files import json_text
from edl_horovod.files.whole_file import write_bytes
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import CheckpointEvent, ResetEvent, Tail, WorkerEvent

__all__ = ["Timeline", "recorded", "write"]

log = logging.getLogger(__name__)

MOST_SPANS = 400_000
"""Spans that a process keeps, some 40 MB; those that come later are left out."""
MOST_IN_TRACE = 1_000_000
"""Spans of all processes in a trace: more than Perfetto shows at ease."""
FLUSH_SECONDS = 1.0
_GZIP = 31
"""The window of zlib that gives a file of gzip."""
_ROWS = {"doing": 1, "steps": 2, "checkpoints": 3}
"""Rows of a process; those of its reductions overlap, so they are not in one of them."""
_JOB, _RESETS, _WORKERS = 0, 1, 2
"""The process of what is the job's own in a trace, and its rows."""


class Timeline:
    """The spans of one process, which other threads may add to; `recorded` writes them."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Any, ...]] = deque()
        self._num_left = MOST_SPANS
        self._least_delay = float("inf")

    def add_phase(
        self, phase: str, cause: str, begin: float, end: float, moved: Mapping[str, float]
    ) -> None:
        """Add a phase of the main thread; times are those of the monotonic clock.

        Args:
            phase: What it was, for people.
            cause: What its time was spent on.
            begin: When it began.
            end: When it ended.
            moved: Seconds of it that had other causes, in this order at its end.
        """
        since = end - sum(moved.values())
        if since > begin:
            self._add("doing", cause, begin, since, phase)
        for name, seconds in moved.items():
            if seconds > 0:
                self._add("doing", name, since, since + seconds, phase)
            since += seconds

    def add_step(self, step: int, begin: float) -> None:
        """Add a step that is done now."""
        self._add("steps", f"step {step}", begin, time.monotonic(), "")

    def add_reductions(self, spans: Sequence[tuple[str, float, float]], at: float) -> None:
        """Add reductions over the ring: names, begins and ends, in seconds from a time on."""
        for name, begin, end in spans:
            self._add("reductions", name, at + begin, at + end, "")

    def add_exchange(self, pong_sent: float, heard: float, sent: float, arrived: float) -> None:
        """Note the clocks of an answer to the coordinator and of its next ping.

        Args:
            pong_sent: When this process sent the answer, by its monotonic clock; 0 for no answer.
            heard: When the coordinator received it, by its clock.
            sent: When the coordinator sent the ping, by its clock.
            arrived: When it arrived, by this process' monotonic clock.
        """
        delay = (arrived - pong_sent) - (sent - heard)
        if pong_sent and 0 <= delay < self._least_delay:
            self._least_delay = delay
            self._entries.append(("clock", ((heard - pong_sent) + (sent - arrived)) / 2, delay))

    def _add(self, row: str, name: str, begin: float, end: float, detail: str) -> None:
        if self._num_left > 0:
            self._entries.append((row, name, round(begin, 6), round(end, 6), detail))
        elif self._num_left == 0:
            self._entries.append(("cut", end))
        self._num_left -= 1

    def lines(self) -> bytes:
        """The entries since the last call, as lines of a file."""
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(json_text.dumps(self._entries.popleft()) + "\n")
        return "".join(lines).encode()


@contextlib.contextmanager
def recorded(
    timeline: Timeline | None,
    folder: Path,
    worker: str,
    *,
    has_room: Callable[[], bool],
    end_phase: Callable[[], None],
) -> Iterator[None]:
    """Write a process' timeline while the block runs.

    Args:
        timeline: What is written; None to write nothing.
        folder: Holds the files of all processes; it is created.
        worker: `host:slot`.
        has_room: Whether the disk has room for what can be missing.
        end_phase: Adds the main thread's present phase to the timeline.
    """
    if timeline is None:
        yield
        return
    is_over = threading.Event()
    header = {"worker": worker, "pid": os.getpid(), "clock": time.time() - time.monotonic()}
    content = json_text.dumps(header).encode() + b"\n"
    path = folder / f"{time.time_ns()}.{worker.replace('/', '_')}.{os.getpid()}.jsonl"

    def write_on() -> None:
        nonlocal content
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("wb", buffering=0) as stream:
                while True:
                    is_last = is_over.wait(FLUSH_SECONDS)
                    content += timeline.lines()
                    if has_room():
                        content = content[stream.write(content) :]
                    if is_last:
                        break
            if content:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            log.warning("%s cannot be written: %s; the job goes on without it", path, error)

    writer = threading.Thread(target=write_on, name="timeline", daemon=True)
    writer.start()
    try:
        yield
    finally:
        end_phase()
        is_over.set()
        writer.join(5 * FLUSH_SECONDS)  # It may hang on a dead file server.


def write(job_dir: JobDir) -> None:
    """Make the trace of a job whose processes have ended, in place of their files.

    Raises:
        OSError: It cannot be written; the files stay.
    """
    parts = [part for path in _paths(job_dir) if (part := _Part.of(path)) is not None]
    if not parts:
        log.warning("%s has no file of a rank, so there is no timeline", job_dir.timeline_parts)
        return
    packed = zlib.compressobj(wbits=_GZIP)
    chunks = (packed.compress(text.encode()) for text in _texts(job_dir, parts))

    def whole() -> Iterator[bytes]:
        yield from chunks
        yield packed.flush()

    write_bytes(job_dir.timeline, whole())
    for path in _paths(job_dir):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # A worker elsewhere may still be ending.
        job_dir.timeline_parts.rmdir()


def _paths(job_dir: JobDir) -> list[Path]:
    return sorted(job_dir.timeline_parts.glob("*.jsonl"))


@dataclass
class _Part:
    """The file of one process."""

    path: Path
    worker: str
    pid: int
    clock: float
    """The host's clock less the monotonic one."""
    offset: float
    """The coordinator's clock less the monotonic one, or the host's where that is not known."""
    uncertainty: float | None = None
    """Half of what the exchange took by which the offset is known; None for the host's clock."""
    begin: float = 0.0
    """When its first span began, by the clock of the trace."""
    cut: float | None = field(default=None, init=False)
    """When the first span came that is left out, by the clock of the trace."""

    @classmethod
    def of(cls, path: Path) -> "_Part | None":
        """Read the head of a file and its clocks; None for a file without spans."""
        with path.open("rb") as stream:
            try:
                head = json.loads(stream.readline())
                part = cls(path, head["worker"], head["pid"], head["clock"], head["clock"])
            except (ValueError, LookupError, TypeError):
                return None
        begin = None
        for kind, *values in part.entries():
            if kind == "clock":  # Each is better than the ones before.
                part.offset, part.uncertainty = values[0], values[1] / 2
            elif begin is None and kind == "doing":
                begin = values[1]
        if begin is None:
            return None
        part.begin = begin + part.offset
        return part

    def entries(self) -> Iterator[list[Any]]:
        """The entries of the file, without those that a killed process cut short."""
        with self.path.open("rb") as stream:
            stream.readline()
            for line in stream:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, list) and len(entry) in (2, 3, 5):
                        yield entry


def _texts(job_dir: JobDir, parts: Sequence[_Part]) -> Iterator[str]:
    """The trace in pieces."""
    began = min(part.begin for part in parts)
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    for event in _job_events(job_dir, parts, began):
        yield json_text.dumps(event) + ",\n"
    share = MOST_IN_TRACE // len(parts)
    for number, part in enumerate(parts, start=1):
        for event in _process_events(part, number, began, share):
            yield json_text.dumps(event) + ",\n"
    cut = [
        f"{part.worker}, pid {part.pid}, from {part.cut - began:.1f} s on"
        for part in parts
        if part.cut is not None
    ]
    if cut:
        log.warning("the timeline is too long and lacks spans of %s", "; ".join(cut))
    yield json_text.dumps(_name("process_name", _JOB, 0, "job"))
    yield '\n], "otherData": '
    facts = {"job": str(job_dir), "began": began, "left out": cut}
    yield json_text.dumps(facts) + "}\n"


def _process_events(part: _Part, number: int, began: float, most: int) -> Iterator[dict[str, Any]]:
    clock = (
        "its host's clock"
        if part.uncertainty is None
        else f"the coordinator's clock, within {part.uncertainty * 1000:.2f} ms"
    )
    yield _name("process_name", number, 0, f"{part.worker}, pid {part.pid}")
    yield _name("process_labels", number, 0, clock, key="labels")
    yield _name("process_sort_index", number, 0, number, key="sort_index")
    for row, thread in _ROWS.items():
        yield _name("thread_name", number, thread, row)
    num_spans = 0
    for row, *values in part.entries():
        if row == "clock":
            continue
        if row == "cut" or num_spans == most:
            part.cut = part.offset + values[0 if row == "cut" else 1]
            text = "the timeline is cut here"
            yield _instant(text, number, _ROWS["doing"], part.cut - began)
            return
        name, begin, end, detail = values
        num_spans += 1
        span = (begin + part.offset - began, end + part.offset - began)
        if row == "reductions":
            event_id = f"{number}.{num_spans}"
            for mark, seconds in zip("be", span, strict=True):
                yield {
                    **{"ph": mark, "cat": row, "id": event_id, "name": name},
                    **{"pid": number, "tid": 0, "ts": _micros(seconds)},
                }
        else:
            yield from _slice(name, number, _ROWS[row], span, {"phase": detail} if detail else {})


def _job_events(job_dir: JobDir, parts: Sequence[_Part], began: float) -> Iterator[dict[str, Any]]:
    """What the job's events say: resets, checkpoints, and what became of workers."""
    yield _name("thread_name", _JOB, _RESETS, "resets")
    yield _name("thread_name", _JOB, _WORKERS, "workers")
    last_reset = 0.0
    for at, source, event in Tail(job_dir.events).new_events():
        match event:
            case ResetEvent() if (number := _writer_of(source, at, parts)) is not None:
                end = _aligned(at, parts[number]) - began
                begin, last_reset = max(end - event.seconds, last_reset), end
                name = f"{event.old_size} -> {event.new_size} ranks"
                details = {"reason": event.reason, "generation": event.generation}
                yield from _slice(name, _JOB, _RESETS, (begin, end), details)
            case CheckpointEvent() if (number := _writer_of(source, at, parts)) is not None:
                end = _aligned(at, parts[number]) - began
                span = (end - (event.seconds or 0.0), end)
                name, details = f"checkpoint of step {event.step}", {"bytes": event.num_bytes}
                yield from _slice(name, number + 1, _ROWS["checkpoints"], span, details)
            case WorkerEvent():
                text = f"{event.worker} {event.state}"
                yield _instant(text, _JOB, _WORKERS, at - began, event.message)


def _writer_of(worker: str, at: float, parts: Sequence[_Part]) -> int | None:
    """The index of the process of a worker that wrote an event: the last one that had begun."""
    numbers = [
        number
        for number, part in enumerate(parts)
        if part.worker == worker and part.begin <= _aligned(at, part)
    ]
    return max(numbers, key=lambda number: parts[number].begin, default=None)


def _aligned(at: float, part: _Part) -> float:
    """A time by the clock of a process' host, by the clock of the trace."""
    return at - part.clock + part.offset


def _slice(
    name: str, process: int, row: int, span: tuple[float, float], details: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """One span; none where it is below a microsecond: a trace's slices must not overlap."""
    begin, end = map(_micros, span)
    if end > begin:
        slice_of = {"ph": "X", "name": name, "pid": process, "tid": row}
        yield {**slice_of, "ts": begin, "dur": end - begin, "args": dict(details)}


def _instant(
    name: str, process: int, row: int, seconds: float, message: str = ""
) -> dict[str, Any]:
    args = {"message": message} if message else {}
    return {
        **{"ph": "i", "s": "t", "name": name, "pid": process, "tid": row},
        **{"ts": _micros(seconds), "args": args},
    }


def _name(kind: str, process: int, row: int, value: Any, key: str = "name") -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": {key: value}}


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
