"""Which part of an epoch's order each step takes, in closed form: pure functions of integers.

The places of an epoch's order are counted lane after lane: the first record of each lane, then the
second of each, and so on. A step takes the next places, and no step goes beyond an epoch's end.
So one integer, the places that were taken, says where a training is, whatever steps it made.
"""

from dataclasses import dataclass

__all__ = ["Span", "StepSpans"]


@dataclass(frozen=True)
class Span:
    """What one step takes: the places from `first` to before `last` of an epoch."""

    epoch: int
    """Counted from 0."""
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class StepSpans:
    """The spans of consecutive steps, from one step on, all of the same size."""

    epoch_records: int
    """Records of one epoch; at least 1."""
    step_records: int
    """Records of a full step; at least 1."""
    first_step: int = 0
    """Counted over all epochs; the steps before it are none of these."""
    first_record: int = 0
    """Records that the steps before took, over all epochs."""

    def __getitem__(self, step: int) -> Span:
        assert step >= self.first_step, (step, self.first_step)
        epoch, place = divmod(self.first_record, self.epoch_records)
        number = step - self.first_step
        if number < self._steps_of_first_epoch:
            first = place + number * self.step_records
        else:
            more, within = divmod(number - self._steps_of_first_epoch, self._steps_per_epoch)
            epoch, first = epoch + 1 + more, within * self.step_records
        return Span(epoch, first, min(first + self.step_records, self.epoch_records))

    def records_before(self, step: int) -> int:
        """Records that the steps before this one take, over all epochs."""
        span = self[step]
        return span.epoch * self.epoch_records + span.first

    def first_step_of(self, epoch: int) -> int:
        """The step that an epoch begins with, or the first one of all that is no earlier."""
        if epoch * self.epoch_records <= self.first_record:
            return self.first_step
        later = epoch - self.first_record // self.epoch_records - 1
        return self.first_step + self._steps_of_first_epoch + later * self._steps_per_epoch

    @property
    def _steps_of_first_epoch(self) -> int:
        left = self.epoch_records - self.first_record % self.epoch_records
        return -(-left // self.step_records)

    @property
    def _steps_per_epoch(self) -> int:
        return -(-self.epoch_records // self.step_records)
