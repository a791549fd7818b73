"""How far a training is, in steps and records, and the events that tell of it."""

import time
from dataclasses import dataclass

from edl_horovod.frameworks.values import StepSums
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog, ProgressEvent, StepEvent
from edl_horovod.records.plan import DataPlan, StepSpans
from edl_horovod.ring.state import NEVER, Counters

__all__ = ["StepReports", "TrainCounters", "TrainingProgress", "report_records"]

EVENT_SECONDS = 0.2


@dataclass
class TrainCounters(Counters):
    """How far a training is."""

    evaluated_step: int = NEVER
    """Step of the last evaluation."""
    epoch_ended_step: int = NEVER
    """Step at which the callbacks were last told that an epoch ended."""
    epoch_begun_step: int = NEVER
    """Step at which the callbacks were last told that an epoch begins."""
    records_taken: int = NEVER
    """Records of the steps that are done, over all epochs, where the batch grows with the ring:
    there the number of steps does not tell. Else it stays as it is."""


class TrainingProgress:
    """Where the counters stand in the data, on the ring as it is."""

    def __init__(
        self, plan: DataPlan, counters: TrainCounters, *, num_epochs: int, max_steps: int | None
    ) -> None:
        self._plan = plan
        self._counters = counters
        self._num_epochs = num_epochs
        self._max_steps = max_steps
        self.spans = self.spans_on(1)

    def spans_on(self, size: int) -> StepSpans:
        """What the steps that follow take on a ring of some size."""
        step, records = self._step, self.records_done if self._plan.is_growing else 0
        return self._plan.spans(size, first_step=step, first_record=records)

    def enter(self, size: int) -> None:
        """Go on with a ring in which so many ranks have lanes."""
        self.spans = self.spans_on(size)

    def end_step(self) -> None:
        """Count the records of the step that is about to be marked as done."""
        if self._plan.is_growing:
            self._counters.records_taken = self.spans.records_before(self._step + 1)

    def last_step_of(self, spans: StepSpans) -> int:
        """How many steps the training has in all, if its steps take these spans to the end."""
        last = spans.first_step_of(self._num_epochs)
        return last if self._max_steps is None else min(last, self._max_steps)

    @property
    def num_steps(self) -> int:
        """Steps of the training in all, if the ring stays as it is."""
        return self.last_step_of(self.spans)

    @property
    def records_done(self) -> int:
        """Records of the steps that are done, over all epochs."""
        if self._plan.is_growing:
            return max(0, self._counters.records_taken)
        return self._plan.records_seen(self._step)

    @property
    def epoch(self) -> int:
        """Epochs that are done."""
        return self.records_done // self._plan.num_records

    @property
    def epoch_of_last_step(self) -> int:
        """The epoch of the last step that is done, counted from 0; there must be one."""
        return (self.records_done - 1) // self._plan.num_records

    @property
    def is_between_epochs(self) -> bool:
        """Whether no epoch is partly done."""
        return self.records_done % self._plan.num_records == 0

    @property
    def is_at_end(self) -> bool:
        """Whether all epochs or all steps are done."""
        is_bound_reached = self._max_steps is not None and self._step >= self._max_steps
        return is_bound_reached or self.epoch >= self._num_epochs

    @property
    def is_cut_short(self) -> bool:
        """Whether the training ends in the midst of an epoch, which a longer one goes on with."""
        return self.is_at_end and not self.is_between_epochs

    @property
    def _step(self) -> int:
        return max(0, self._counters.step)


class StepReports:
    """What the leader tells of the steps that are done."""

    def __init__(self, events: EventLog, progress: TrainingProgress) -> None:
        self._events = events
        self._progress = progress
        self._at = 0.0
        self._records = 0
        self._is_ring_reported = False
        self._pending: tuple[int, StepSums, int] | None = None

    def enter_ring(self) -> None:
        """Count the records of a second from here on."""
        self._at, self._records = time.monotonic(), self._progress.records_done
        self._is_ring_reported = False
        self._pending = None

    def report(self, step: int, sums: StepSums, size: int) -> None:
        """Write the event of a step that is done, if it is time for one.

        Args:
            step: Steps of the job that are done, this one included.
            sums: The step's sums over the ring.
            size: The number of ranks that have the state, and so compute examples.
        """
        self._pending = (step, sums, size)
        # Each ring's first step is reported, however short it lives: it ends the stall before it.
        is_due = time.monotonic() - self._at >= EVENT_SECONDS or not self._is_ring_reported
        if is_due or self._progress.is_at_end:
            self.report_last()

    def report_last(self) -> None:
        """Write the event of the step that was done last, if there is none of it yet."""
        if self._pending is None:
            return
        (step, sums, size), self._pending = self._pending, None
        now = time.monotonic()
        records = self._progress.records_done
        rate = (records - self._records) / max(now - self._at, 1e-9)
        self._events.write(
            StepEvent(
                step=step,
                total_steps=self._progress.num_steps,
                epoch=self._progress.epoch_of_last_step,
                loss=sums.loss,
                records_per_second=round(rate, 1),
                records_seen=records,
                size=size,
                metrics=sums.metrics,
            )
        )
        self._at, self._records, self._is_ring_reported = now, records, True


def report_records(events: EventLog, world: World, *, num_done: int, num_records: int) -> None:
    """Tell how far a task is that has no steps to tell of; the leader does."""
    if world.is_leader:
        events.write(ProgressEvent(records=num_done, total_records=num_records, size=world.size))
