"""Batches of consecutive steps, made from the records of a rank's lanes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.records.plan import DataPlan, Ids, StepSpans
from edl_horovod.records.source import RecordSource
from edl_horovod.records.steps import NO_IDS, ExpectedRestart, StepRecords
from edl_horovod.spec import Mode

MAX_PARTS = 3
"""The maximum number of parts of examples: features, labels and weights."""


class StepBatches(ABC):
    """Batches of consecutive steps; a framework adds how records become examples."""

    def __init__(self, source: RecordSource, plan: DataPlan) -> None:
        """Prepare to read; nothing is read before the first `restart`.

        Args:
            source: Reads the records.
            plan: Determines the records of a step.
        """
        self._records = StepRecords(source, plan)
        self._plan = plan
        self._next_step = 0
        self._expected = ExpectedRestart(self._restart_ahead)
        self.record_ids: Ids = NO_IDS
        """Ids of the records read by the last `next_batch`, including filtered ones."""

    @property
    @abstractmethod
    def element_spec(self) -> Any:
        """The structure of a batch, in the framework's own form."""

    @abstractmethod
    def try_first(self) -> Batch | None:
        """Make the examples of the first lane's first step, as a test of the user's code.

        Returns None if all of its records were filtered out.

        Raises:
            DataError: A record could not be read or parsed.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop prefetching."""

    def restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Read these lanes from `first_step` up to, but not including, `last_step`.

        Steps count from 0 over all epochs. `spans` gives the records of each step; None takes them
        from the plan, for a fixed global batch. Prepared batches are discarded.
        """
        if not self._expected.take(lanes, first_step, last_step, spans):
            self._restart(lanes, first_step, last_step, spans)

    def expect(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Start in a thread the `restart` that is expected next, with the same arguments."""
        self._expected.begin(lanes, first_step, last_step, spans)

    def next_batch(self) -> Batch | None:
        """Return this rank's examples of the next step; None if it has none.

        Raises:
            DataError: A record could not be read or parsed.
        """
        step, self._next_step = self._next_step, self._next_step + 1
        self.record_ids = NO_IDS
        if step not in self._records:
            return None
        batch = self._take(step)
        # Only now: the ids of a step are known once it has been read.
        self.record_ids = self._records.take_ids(step)
        return batch and replace(batch, places=partial(self._records.places, step))

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of the first epoch, with the examples of all lanes."""
        spans = self._plan.spans(1)
        num_steps = spans.first_step_of(1)
        self.restart(range(self._plan.num_lanes), 0, num_steps, spans)
        for _ in range(num_steps):
            batch = self.next_batch()
            if batch is not None:
                yield batch

    def _restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        """Begin a new run; frameworks extend it."""
        self._records.restart(lanes, first_step, last_step, spans)
        self._next_step = first_step

    def _restart_ahead(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        """Begin a run that is expected; called in another thread."""
        self._restart(lanes, first_step, last_step, spans)

    @abstractmethod
    def _take(self, step: int) -> Batch | None:
        """Return the examples of a step with records; None if all of these are filtered out."""


def wrong_parts(name: str, mode: Mode, *, received: str, hint: str) -> UserCodeError:
    """Create the error for examples that are not features, labels and perhaps weights.

    Args:
        name: The function that returned them.
        mode: The mode that it was called with.
        received: Describes what it returned.
        hint: What the user can do.
    """
    return UserCodeError(
        f"{name} must return (features, labels) or (features, labels, sample_weight) in mode"
        f" {mode.value}.",
        received=received,
        hint=hint,
    )
