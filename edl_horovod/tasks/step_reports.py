"""Steps in a job's events: some a second, the first of each ring, and those that are evaluated."""

import time

from edl_horovod.frameworks.values import StepSums
from edl_horovod.job.events import EventLog, StepEvent
from edl_horovod.tasks.course import Course

__all__ = ["StepReports"]

EVENT_SECONDS = 0.2


class StepReports:
    """What the leader tells of the steps that are done."""

    def __init__(self, events: EventLog, course: Course) -> None:
        """Tell nothing yet."""
        self._events = events
        self._course = course
        self._at = 0.0
        self._records = 0
        self._is_ring_reported = False
        self._pending: tuple[int, StepSums, int] | None = None

    def enter_ring(self) -> None:
        """Count the records of a second from here on."""
        self._at, self._records = time.monotonic(), self._course.records_done
        self._is_ring_reported = False
        self._pending = None

    def report(self, step: int, sums: StepSums, size: int) -> None:
        """Write the event of a step that is done, if it is time for one.

        Args:
            step: Steps of the job that are done, this one included.
            sums: Of this step.
            size: Ranks that had examples of it, or might have.
        """
        self._pending = (step, sums, size)
        # Each ring's first step is reported, however short it lives: it ends the stall before it.
        is_due = time.monotonic() - self._at >= EVENT_SECONDS or not self._is_ring_reported
        if is_due or self._course.is_at_end:
            self.report_last()

    def report_last(self) -> None:
        """Write the event of the step that was done last, if there is none of it yet."""
        if self._pending is None:
            return
        (step, sums, size), self._pending = self._pending, None
        now = time.monotonic()
        records = self._course.records_done
        rate = (records - self._records) / max(now - self._at, 1e-9)
        self._events.write(
            StepEvent(
                step=step,
                total_steps=self._course.num_steps,
                epoch=self._course.epoch_of_last_step,
                loss=sums.loss,
                records_per_second=round(rate, 1),
                records_seen=records,
                size=size,
                metrics=sums.metrics,
            )
        )
        self._at, self._records, self._is_ring_reported = now, records, True
