"""A job's events in its launcher pod's log, one JSON object a line: what `edl status` reads there.

The job's directory is on a volume that a client may not be able to reach; the log can be asked for.
"""

from collections.abc import Iterable, Iterator
from typing import TextIO

from edl_horovod.job import events
from edl_horovod.job.events import Recorded

SHOWN = (
    events.JobEvent
    | events.GenerationEvent
    | events.ResetEvent
    | events.EvaluationEvent
    | events.WorkerEvent
    | events.CheckpointEvent
    | events.DiscoveryEvent
    | events.AutoscaleEvent
)
"""Kinds of which every event is logged; the job's directory has all events of all kinds."""
THINNED = (events.StepEvent, events.ProgressEvent)
"""Kinds that are written many times a second, so that only some of their events are logged."""
LEAST_SECONDS = 5.0
"""Least time between two logged events of a kind in `THINNED`."""


class PodLog:
    """Writes a job's events to a log, some kinds only every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_logged: dict[type[events.Event], float] = dict.fromkeys(THINNED, 0.0)
        self._skipped: dict[type[events.Event], Recorded] = {}
        """The newest event of each kind that was not logged."""

    def __call__(self, new_events: list[Recorded]) -> None:
        """Write new events."""
        for recorded in new_events:
            kind = type(recorded.event)
            if kind is events.JobEvent:
                # A job's end is logged after the last step and progress: they say where it ended.
                self._stream.writelines(map(events.line_of, self._skipped.values()))
                self._skipped.clear()
            if self._is_due(recorded):
                self._skipped.pop(kind, None)
                self._stream.write(events.line_of(recorded))
            elif kind in THINNED:
                self._skipped[kind] = recorded
        self._stream.flush()

    def _is_due(self, recorded: Recorded) -> bool:
        """Whether to log an event; if its kind is thinned, also notes that it was logged."""
        kind = type(recorded.event)
        if kind not in self._last_logged:
            return isinstance(recorded.event, SHOWN)
        # Negative after the clock was set back: log at once, not when it has caught up.
        if 0 <= recorded.time - self._last_logged[kind] < LEAST_SECONDS:
            return False
        self._last_logged[kind] = recorded.time
        return True


def events_in(lines: Iterable[str]) -> Iterator[Recorded]:
    """The events among the lines of a log, of which the oldest may be cut, and no other lines."""
    for line in lines:
        if line.startswith('{"time":') and (recorded := events.parse(line)) is not None:
            yield recorded
