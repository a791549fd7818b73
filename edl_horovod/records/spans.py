"""Which part of an epoch's order each step takes, in closed form: pure functions of integers.

Positions in an epoch's order are counted across the lanes: the first record of each lane, then the
second of each, and so on. A step takes the next positions, and no step crosses the end of an epoch.
One integer, the number of positions taken, is therefore the full state of the training's progress,
even if the size of the steps has changed.
"""

from dataclasses import dataclass

__all__ = ["Span", "StepSpans"]


@dataclass(frozen=True)
class Span:
    """The positions that one step takes: `first` to `last` (exclusive) of an epoch."""

    epoch: int
    """Counted from 0."""
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class StepSpans:
    """The spans of consecutive steps of equal size, beginning with `first_step`."""

    epoch_records: int
    """Records of one epoch; at least 1."""
    step_records: int
    """Records of a full step; at least 1."""
    first_step: int = 0
    """The first step that has a span here, counted over all epochs."""
    first_record: int = 0
    """Records that earlier steps took, over all epochs."""

    def __getitem__(self, step: int) -> Span:
        assert step >= self.first_step, (step, self.first_step)
        epoch, position = divmod(self.first_record, self.epoch_records)
        number = step - self.first_step
        if number < self._steps_of_first_epoch:
            first = position + number * self.step_records
        else:
            later_epochs, within = divmod(
                number - self._steps_of_first_epoch, self._steps_per_epoch
            )
            epoch, first = epoch + 1 + later_epochs, within * self.step_records
        return Span(epoch, first, min(first + self.step_records, self.epoch_records))

    def records_before(self, step: int) -> int:
        """Return the number of records that earlier steps take, over all epochs."""
        span = self[step]
        return span.epoch * self.epoch_records + span.first

    def first_step_of(self, epoch: int) -> int:
        """Return the first step of an epoch, or `first_step` if the epoch began before it."""
        if epoch * self.epoch_records <= self.first_record:
            return self.first_step
        later_epochs = epoch - self.first_record // self.epoch_records - 1
        return self.first_step + self._steps_of_first_epoch + later_epochs * self._steps_per_epoch

    @property
    def _steps_of_first_epoch(self) -> int:
        remaining = self.epoch_records - self.first_record % self.epoch_records
        return -(-remaining // self.step_records)

    @property
    def _steps_per_epoch(self) -> int:
        return -(-self.epoch_records // self.step_records)
