"""The progress of a training in steps and records, and its events."""

import time
from dataclasses import dataclass

from edl_horovod.frameworks.values import StepSums
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog, ProgressEvent, StepEvent
from edl_horovod.records.plan import DataPlan, StepSpans
from edl_horovod.ring.state import NEVER, Counters

EVENT_SECONDS = 0.2


@dataclass
class TrainCounters(Counters):
    """The progress of a training, as a part of the ring's state."""

    evaluated_step: int = NEVER
    """Step of the last evaluation."""
    epoch_ended_step: int = NEVER
    """Step at which the callbacks of an epoch's end were last called."""
    epoch_begun_step: int = NEVER
    """Step at which the callbacks of an epoch's begin were last called."""
    records_taken: int = NEVER
    """Number of records in the steps that are done, over all epochs, if the batch grows with the
    ring. With a fixed batch it is not used: there, it follows from the number of steps."""


class TrainingProgress:
    """The position of a training in its data, for the present ring."""

    def __init__(
        self, plan: DataPlan, counters: TrainCounters, *, num_epochs: int, max_steps: int | None
    ) -> None:
        self._plan, self._counters = plan, counters
        self._num_epochs, self._max_steps = num_epochs, max_steps
        self.spans = self.spans_on(1)

    def spans_on(self, size: int) -> StepSpans:
        """The spans of the following steps on a ring with this number of ranks with lanes."""
        step, records = self._step, self.records_done if self._plan.is_growing else 0
        return self._plan.spans(size, first_step=step, first_record=records)

    def enter(self, size: int) -> None:
        """Begin with a ring in which `size` ranks have lanes."""
        self.spans = self.spans_on(size)

    def end_step(self) -> None:
        """Count the records of the step that is about to be marked as done."""
        if self._plan.is_growing:
            self._counters.records_taken = self.spans.records_before(self._step + 1)

    def last_step_of(self, spans: StepSpans) -> int:
        """The total number of steps of the training, if all following steps have these spans."""
        last = spans.first_step_of(self._num_epochs)
        return last if self._max_steps is None else min(last, self._max_steps)

    @property
    def num_steps(self) -> int:
        """The total number of steps of the training, if the ring does not change."""
        return self.last_step_of(self.spans)

    @property
    def records_done(self) -> int:
        """Number of records in the steps that are done, over all epochs."""
        if self._plan.is_growing:
            return max(0, self._counters.records_taken)
        return self._plan.records_seen(self._step)

    @property
    def epoch(self) -> int:
        """Number of epochs that are done."""
        return self.records_done // self._plan.num_records

    @property
    def epoch_of_last_step(self) -> int:
        """The epoch of the last step that is done, counted from 0; there must be one."""
        return (self.records_done - 1) // self._plan.num_records

    @property
    def is_between_epochs(self) -> bool:
        """Whether all epochs that have begun are complete."""
        return self.records_done % self._plan.num_records == 0

    @property
    def is_at_end(self) -> bool:
        """Whether all epochs or all steps are done."""
        is_bound_reached = self._max_steps is not None and self._step >= self._max_steps
        return is_bound_reached or self.epoch >= self._num_epochs

    @property
    def is_cut_short(self) -> bool:
        """Whether the training ends within an epoch, so that a longer one would continue that."""
        return self.is_at_end and not self.is_between_epochs

    @property
    def _step(self) -> int:
        return max(0, self._counters.step)


class StepReports:
    """Writes the leader's events about steps, a few each second."""

    def __init__(self, events: EventLog, progress: TrainingProgress) -> None:
        self._events, self._progress = events, progress
        self._pending: tuple[int, StepSums, int] | None = None
        self.enter_ring()

    def enter_ring(self) -> None:
        """Begin to measure the throughput of a ring."""
        self._at, self._records = time.monotonic(), self._progress.records_done
        self._is_ring_reported = False
        self._pending = None

    def report(self, step: int, sums: StepSums, size: int) -> None:
        """Write the event of a step that is done, if an event is due.

        Args:
            step: Steps of the job that are done, this one included.
            sums: The step's sums over the ring.
            size: The number of ranks that have the state, and so compute examples.
        """
        self._pending = (step, sums, size)
        # The first step of each ring is always reported: it ends the stall that displays show.
        is_due = time.monotonic() - self._at >= EVENT_SECONDS or not self._is_ring_reported
        if is_due or self._progress.is_at_end:
            self.report_last()

    def report_last(self) -> None:
        """Write the event of the last step, if it has not been written yet."""
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
                local_steps=sums.local_steps,
            )
        )
        self._at, self._records, self._is_ring_reported = now, records, True


def report_records(events: EventLog, world: World, num_done: int, num_records: int) -> None:
    """Report the progress of a task without step events; only the leader writes."""
    if world.is_leader:
        events.write(ProgressEvent(records=num_done, total_records=num_records, size=world.size))
