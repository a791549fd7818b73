"""A job's events in its launcher pod's log, one JSON object a line: what `edl status` reads there.

The job's directory is on a volume that a client may not be able to reach; the log can be asked for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TextIO

from edl_horovod.job import events
from edl_horovod.job.account import Account
from edl_horovod.job.events import Recorded
from edl_horovod.job.state import JobState, advance, summary_of

SHOWN = (
    events.JobEvent
    | events.GenerationEvent
    | events.ResetEvent
    | events.EvaluationEvent
    | events.WorkerEvent
    | events.TraceEvent
    | events.CheckpointEvent
    | events.PrivacyEvent
    | events.DiscoveryEvent
    | events.AutoscaleEvent
)
"""Kinds of which every event is logged; the job's directory has all events of all kinds."""
THINNED = (events.StepEvent, events.ProgressEvent)
"""Kinds that are written many times a second, so that only some of their events are logged."""
SUMMARIZED = (
    events.JobEvent
    | events.GenerationEvent
    | events.ResetEvent
    | events.EvaluationEvent
    | events.StepEvent
    | events.ProgressEvent
)
"""Kinds of whose events a summary is logged, too: readers ask for the last lines of the log."""
LEAST_SECONDS = 5.0
"""Least time between two logged events of a kind in `THINNED`."""
ACCOUNT_SECONDS = 60.0
"""Time between two logged accounts, and between two summaries."""
ALL_RANKS = "all ranks"
"""The source of an account that is the sum of those of all ranks."""


class PodLog:
    """Writes a job's events to a log, some kinds only every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_logged: dict[type[events.Event], float] = dict.fromkeys(THINNED, 0.0)
        self._skipped: dict[type[events.Event], Recorded] = {}
        """The newest event of each kind that was not logged."""
        self._account, self._account_logged = Account(), 0.0
        self._state = JobState()

    def __call__(self, new_events: list[Recorded]) -> None:
        """Write new events."""
        for recorded in new_events:
            self._account = self._account.after(recorded)
            if not 0 <= recorded.time - self._account_logged < ACCOUNT_SECONDS:
                self._log_account(recorded.time)
                if self._state.task:  # It is empty until the job's first event, which says it.
                    summary = Recorded(recorded.time, "launcher", summary_of(self._state))
                    self._stream.write(events.line_of(summary))
            if isinstance(recorded.event, SUMMARIZED):
                self._state = advance(self._state, recorded)
            kind = type(recorded.event)
            if kind is events.JobEvent:
                # A job's end is logged after the last step and progress: they say where it ended.
                self._stream.writelines(map(events.line_of, self._skipped.values()))
                self._skipped.clear()
                self._log_account(recorded.time)
            if self._is_due(recorded):
                self._skipped.pop(kind, None)
                self._stream.write(events.line_of(_shortened(recorded)))
            elif kind in THINNED:
                self._skipped[kind] = recorded
        self._stream.flush()

    def _log_account(self, time: float) -> None:
        """Log one account for all ranks: one for each would soon be most of the log."""
        self._account_logged = time
        if ranks := self._account.ranks:
            is_running = any(rank.doing for rank in ranks)
            account = events.AccountEvent(
                pid=0,
                # The first that was heard of stays the first. The earliest may be heard of later,
                # and would make this the account of another process to those that read the log.
                began=ranks[0].began,
                seconds=self._account.seconds,
                doing="running" if is_running else "",
            )
            self._stream.write(events.line_of(Recorded(time, ALL_RANKS, account)))

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


def _shortened(recorded: Recorded) -> Recorded:
    """The event without what is long: all ranks of a ring that breaks leave a trace at once."""
    event = recorded.event
    if isinstance(event, events.TraceEvent):
        return recorded._replace(event=replace(event, stack=(), last=()))
    return recorded


def events_in(lines: Iterable[str]) -> Iterator[Recorded]:
    """The events among the lines of a log, of which the oldest may be cut, and no other lines."""
    for line in lines:
        if line.startswith('{"time":') and (recorded := events.parse(line)) is not None:
            yield recorded
