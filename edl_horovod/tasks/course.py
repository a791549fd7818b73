"""The course of a training: how far it is, in steps and records, and where it ends."""

from dataclasses import dataclass

from edl_horovod.records.plan import DataPlan, StepSpans
from edl_horovod.ring.state import NEVER, Counters

__all__ = ["Course", "TrainCounters"]


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


class Course:
    """Where the counters stand in the data, on the ring as it is."""

    def __init__(
        self, plan: DataPlan, counters: TrainCounters, *, num_epochs: int, max_steps: int | None
    ) -> None:
        """Stand where the counters say, on a ring of one."""
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
