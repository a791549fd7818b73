"""A job's events in its launcher pod's log, one JSON object a line: what `edl status` reads there.

The job's directory is on a volume that a client may not be able to reach; the log can be asked for.
"""

from collections.abc import Iterable, Iterator
from typing import TextIO

from edl_horovod.job.events import (
    AutoscaleEvent,
    CheckpointEvent,
    DiscoveryEvent,
    EvaluationEvent,
    Event,
    GenerationEvent,
    JobEvent,
    ProgressEvent,
    Recorded,
    ResetEvent,
    StepEvent,
    WorkerEvent,
    line_of,
    parse,
)

__all__ = ["PodLog", "events_in"]

SHOWN = (
    JobEvent
    | GenerationEvent
    | ResetEvent
    | EvaluationEvent
    | WorkerEvent
    | CheckpointEvent
    | DiscoveryEvent
    | AutoscaleEvent
)
"""Kinds that the log has whole; all events are in the job's directory."""
THINNED = (StepEvent, ProgressEvent)
"""Kinds that come many times a second."""
LEAST_SECONDS = 5.0
"""Between two events of a kind that is thinned."""


class PodLog:
    """Writes events as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: dict[type[Event], float] = dict.fromkeys(THINNED, 0.0)
        self._left_out: dict[type[Event], Recorded] = {}
        """The newest events that were not due, by their kinds."""

    def __call__(self, events: list[Recorded]) -> None:
        """Write new events."""
        for recorded in events:
            kind = type(recorded.event)
            if kind is JobEvent:
                # What came before the end of a job is where it ended.
                self._stream.writelines(map(line_of, self._left_out.values()))
                self._left_out.clear()
            if self._is_due(recorded):
                self._left_out.pop(kind, None)
                self._stream.write(line_of(recorded))
            elif kind in THINNED:
                self._left_out[kind] = recorded
        self._stream.flush()

    def _is_due(self, recorded: Recorded) -> bool:
        kind = type(recorded.event)
        if kind not in self._last:
            return isinstance(recorded.event, SHOWN)
        # A clock that was set back must not hide what comes until it is where it was.
        if 0 <= recorded.time - self._last[kind] < LEAST_SECONDS:
            return False
        self._last[kind] = recorded.time
        return True


def events_in(lines: Iterable[str]) -> Iterator[Recorded]:
    """The events among the lines of a log, of which the oldest may be cut, and no other lines."""
    for line in lines:
        if line.startswith('{"time":') and (recorded := parse(line)) is not None:
            yield recorded
