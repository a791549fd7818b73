"""A job's events in its launcher pod's log, one JSON object a line: what `edl status` reads there.

The job's directory is on a volume that whoever asks may not reach; the log can be asked for.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from edl_horovod.job.events import is_event

__all__ = ["PodLog", "events_in"]

SHOWN = (
    "job",
    "generation",
    "reset",
    "evaluation",
    "worker",
    "checkpoint",
    "discovery",
    "autoscale",
)
"""Kinds that the log has whole; all events are in the job's directory."""
THINNED = ("step", "progress")
"""Kinds that come many times a second."""
LEAST_SECONDS = 5.0
"""Between two events of a kind that is thinned."""


class PodLog:
    """Writes events as they come."""

    def __init__(self, stream: TextIO) -> None:
        """Write nothing yet.

        Args:
            stream: The pod's log.
        """
        self._stream = stream
        self._last = dict.fromkeys(THINNED, 0.0)
        self._left_out: dict[str, dict[str, Any]] = {}
        """The newest events that were not due, by their kinds."""

    def __call__(self, events: list[dict[str, Any]]) -> None:
        """Write new events."""
        for event in events:
            if event["kind"] == "job":
                # What came before the end of a job is where it ended.
                for last in self._left_out.values():
                    self._write(last)
                self._left_out.clear()
            if self._is_due(event):
                self._left_out.pop(event["kind"], None)
                self._write(event)
            elif event["kind"] in THINNED:
                self._left_out[event["kind"]] = event
        self._stream.flush()

    def _write(self, event: dict[str, Any]) -> None:
        self._stream.write(json.dumps(event) + "\n")

    def _is_due(self, event: dict[str, Any]) -> bool:
        kind = event["kind"]
        if kind not in self._last:
            return kind in SHOWN
        # A clock that was set back must not hide what comes until it is where it was.
        if 0 <= event["time"] - self._last[kind] < LEAST_SECONDS:
            return False
        self._last[kind] = event["time"]
        return True


def events_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events among the lines of a log; what else is written there is passed over.

    Args:
        lines: Of the launcher pod's log.
    """
    for line in lines:
        if not line.startswith('{"time":'):
            continue
        try:
            event = json.loads(line)
        except ValueError:  # The oldest line may be cut.
            continue
        if is_event(event):
            yield event
