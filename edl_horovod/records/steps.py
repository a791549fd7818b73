"""The records of consecutive steps on some lanes, and a restart that is made ahead of its time.

A framework's batches ask for them from a thread of their own, ahead of the step that is computed.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edl_horovod.records.columns import part
from edl_horovod.records.plan import DataPlan, EpochOrder, FilledSteps, Ids
from edl_horovod.records.source import Records, RecordSource
from edl_horovod.records.spans import StepSpans

__all__ = ["NO_IDS", "NO_STEP", "ExpectedRestart", "StepRecords"]

NO_IDS: Ids = np.empty(0, np.int64)
NO_STEP = -1
"""In place of a step or a run that there is not."""
QUICK_READ_SECONDS = 0.0005
MAX_STEPS_TOGETHER = 16


@dataclass
class _Run:
    """What is read between one restart and the next."""

    number: int
    lanes: range
    steps: FilledSteps | range
    """The steps that are read; of a growing batch some may hold no record on these lanes."""
    spans: StepSpans
    read_ids: dict[int, Ids] = field(default_factory=dict)
    """Ids of the steps that were read and not asked for yet."""
    epoch: int = -1
    order: EpochOrder | None = None
    """The order of that epoch."""
    failure: tuple[int, Exception] | None = None
    """The first step whose records could not be read, and why."""
    ahead: dict[int, tuple[Ids, Records]] = field(default_factory=dict)
    """What was read together with an earlier step, by the number of the step in the run."""
    num_together: int = 1
    """How many steps the next read takes."""

    def ids_of(self, number: int, plan: DataPlan) -> Ids:
        """Ids of the records of a step, known by its number in the run."""
        span = self.spans[self.steps[number]]
        if self.order is None or self.epoch != span.epoch:
            self.order, self.epoch = plan.order(span.epoch), span.epoch
        return self.order.between(span.first, span.last, self.lanes)


class StepRecords:
    """Reads the records of step after step; a restart points it at other lanes or another step.

    Each restart begins a new run. `take_run` and `read` are called by the thread that reads ahead,
    the other methods by the thread that computes steps. The source is called by one at a time.
    """

    def __init__(self, source: RecordSource, plan: DataPlan) -> None:
        self._source = source
        self._plan = plan
        self._run = self._make_run(0, range(0), 0, 0, plan.spans(1))
        self._taken: dict[int, int] = {}
        """The latest run that each iterator has taken."""

    @property
    def run_number(self) -> int:
        """Number of the latest run."""
        return self._run.number

    def restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Begin the next run: the steps, over all epochs, from the first to before the last.

        Args:
            lanes: Whose records are read.
            first_step: The first step.
            last_step: The step after the last.
            spans: What each step takes; None where the plan says it, with a fixed global batch.
        """
        number, spans = self._run.number + 1, spans or self._plan.spans(1)
        # A new object: threads that read ahead may still work on the run before.
        self._run = self._make_run(number, lanes, first_step, last_step, spans)

    def __contains__(self, step: int) -> bool:
        return step in self._run.steps

    def take_ids(self, step: int) -> Ids:
        """Ids of the records of a step that was read; each step is asked for once."""
        return self._run.read_ids.pop(step, NO_IDS)

    def failure_of(self, step: int) -> Exception | None:
        """Why the records of a step could not be read; None unless it is the first such step."""
        failure = self._run.failure
        return failure[1] if failure is not None and failure[0] == step else None

    def has_taken_run(self, iterator: int) -> bool:
        """Whether an iterator has taken the latest run."""
        return self._taken.get(iterator) == self._run.number

    def take_run(self, iterator: int) -> tuple[int, int]:
        """Number of the latest run and how many steps it reads.

        Returns:
            `NO_STEP` and 0 where this iterator has taken that run before.
        """
        run = self._run
        if self._taken.get(iterator) == run.number:
            return NO_STEP, 0
        self._taken[iterator] = run.number
        return run.number, len(run.steps)

    def read(self, run_number: int, number: int) -> tuple[int, Records | None]:
        """Read the records of one step of a run.

        Args:
            run_number: Number of the run.
            number: Counts the steps of the run that hold records on its lanes.

        Returns:
            The step of the job and its records; `NO_STEP` and None where a newer run has begun.

        Raises:
            Exception: The source's; `failure_of` has it too.
        """
        run = self._run
        if run.number != run_number:
            return NO_STEP, None
        step = run.steps[number]
        if number not in run.ahead:
            self._read_together(run, number)
        if number in run.ahead:
            run.read_ids[step], records = run.ahead.pop(number)
            return step, records
        ids = run.read_ids[step] = run.ids_of(number, self._plan)
        try:
            return step, self._source.read(ids)
        except Exception as error:
            # Kept for `failure_of`: a framework may hand on nothing but the error's text.
            run.failure = run.failure or (step, error)
            raise

    def _read_together(self, run: _Run, number: int) -> None:
        """Read the columns of a step and of those that follow it, as long as that is quick.

        Small steps take longer to ask for than to copy, and the thread that computes waits for the
        interpreter meanwhile. Where a read fails, each step is read alone: the one at fault may
        never be wanted.
        """
        if self._source.layout is None:
            return
        numbers = range(number, min(number + run.num_together, len(run.steps)))
        ids = [run.ids_of(each, self._plan) for each in numbers]
        began = time.perf_counter()
        try:
            columns: list[Any] = self._source.read(np.concatenate(ids))
        except Exception:
            run.num_together = 1
            return
        is_quick = time.perf_counter() - began < QUICK_READ_SECONDS
        run.num_together = min(2 * run.num_together, MAX_STEPS_TOGETHER) if is_quick else 1
        ends = itertools.accumulate(map(len, ids))
        for at, of_step, end in zip(numbers, ids, ends, strict=True):
            start = end - len(of_step)
            run.ahead[at] = of_step, [part(column, start, end) for column in columns]

    def _make_run(
        self, number: int, lanes: range, first_step: int, last_step: int, spans: StepSpans
    ) -> _Run:
        steps: FilledSteps | range = range(first_step, last_step)
        if not self._plan.is_growing:
            steps = FilledSteps(self._plan, lanes, first=first_step, last=last_step)
        return _Run(number, lanes, steps, spans)


class ExpectedRestart:
    """A restart that begins in a thread before it is certain to be wanted."""

    def __init__(self, restart: Callable[[range, int, int, StepSpans | None], None]) -> None:
        self._restart = restart
        self._thread: threading.Thread | None = None
        self._done: tuple[range, int, int, StepSpans | None] | None = None

    def begin(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Begin the restart; one that was begun before is waited for."""
        self._wait()
        self._done = None

        def run() -> None:
            # What fails here fails again in the restart that is made in earnest, or after it.
            with contextlib.suppress(Exception):
                self._restart(lanes, first_step, last_step, spans)
                self._done = lanes, first_step, last_step, spans

        self._thread = threading.Thread(target=run, name="restart", daemon=True)
        self._thread.start()

    def is_this(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> bool:
        """Whether just this restart was begun and has succeeded; waits for one that was begun."""
        self._wait()
        done, self._done = self._done, None
        return done == (lanes, first_step, last_step, spans)

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
