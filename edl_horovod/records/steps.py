"""The records of consecutive steps on some lanes, and restarts that are prepared in advance.

The batches of a framework read them in a separate thread, ahead of the step that is computed.
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
from edl_horovod.records.plan import DataPlan, EpochOrder, FilledSteps, Ids, StepSpans
from edl_horovod.records.source import Records, RecordSource

NO_IDS: Ids = np.empty(0, np.int64)
NO_STEP = -1
"""Stands for the absence of a step or run."""
QUICK_READ_SECONDS = 0.0005
MAX_STEPS_TOGETHER = 16


@dataclass
class _Run:
    """The steps that are read between one restart and the next."""

    number: int
    lanes: range
    steps: FilledSteps | range
    """The steps to read; with a growing batch some may have no records on these lanes."""
    spans: StepSpans
    read_ids: dict[int, Ids] = field(default_factory=dict)
    """Record ids of the steps that were read and whose ids were not taken yet."""
    epoch: int = -1
    order: EpochOrder | None = None
    """The order of the epoch `epoch`."""
    failure: tuple[int, Exception] | None = None
    """The first step whose records could not be read, and the error."""
    prefetched: dict[int, tuple[Ids, Records]] = field(default_factory=dict)
    """Records that were read together with an earlier step, by the step's number in the run."""
    num_together: int = 1
    """Number of steps that the next read covers."""

    def ids_of(self, number: int, plan: DataPlan) -> Ids:
        """Return the record ids of a step, given its number in the run."""
        span = self.spans[self.steps[number]]
        if self.order is None or self.epoch != span.epoch:
            self.order, self.epoch = plan.order(span.epoch), span.epoch
        return self.order.between(span.first, span.last, self.lanes)


class StepRecords:
    """Reads the records of consecutive steps; a restart continues at other lanes or another step.

    Each restart begins a new run. The thread that reads ahead calls `take_run` and `read`; the
    thread that computes steps calls the other methods. Only one thread calls the source at a time.
    """

    def __init__(self, source: RecordSource, plan: DataPlan) -> None:
        self._source = source
        self._plan = plan
        self._run = self._make_run(0, range(0), 0, 0, plan.spans(1))
        self._taken: dict[int, int] = {}
        """The latest run that each iterator has started to read."""

    @property
    def run_number(self) -> int:
        """Number of the latest run."""
        return self._run.number

    def restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Begin the next run.

        Args:
            lanes: The lanes to read.
            first_step: The first step, counted over all epochs.
            last_step: The step after the last.
            spans: The spans of the steps; None to use the plan's, with a fixed global batch.
        """
        number, spans = self._run.number + 1, spans or self._plan.spans(1)
        # A new object: threads that read ahead may still use the previous run.
        self._run = self._make_run(number, lanes, first_step, last_step, spans)

    def __contains__(self, step: int) -> bool:
        return step in self._run.steps

    def take_ids(self, step: int) -> Ids:
        """Return the record ids of a step that was read; call it once for each step."""
        return self._run.read_ids.pop(step, NO_IDS)

    def places(self, step: int) -> Ids:
        """Return the place in its step of each record of this rank; see `DataPlan.places`."""
        return self._plan.places(self._run.spans[step], self._run.lanes)

    def failure_of(self, step: int) -> Exception | None:
        """Return the error of a step if it is the first step that could not be read, else None."""
        failure = self._run.failure
        return failure[1] if failure is not None and failure[0] == step else None

    def has_taken_run(self, iterator: int) -> bool:
        """Whether an iterator has started to read the latest run."""
        return self._taken.get(iterator) == self._run.number

    def take_run(self, iterator: int) -> tuple[int, int]:
        """Start to read the latest run.

        Returns:
            The number of the run and its number of steps; `NO_STEP` and 0 if this iterator has
            already taken that run.
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
            number: Number of the step among the steps of the run that have records on its lanes.

        Returns:
            The step of the job and its records; `NO_STEP` and None if a newer run has begun.

        Raises:
            Exception: Any error of the source; `failure_of` returns it, too.
        """
        run = self._run
        if run.number != run_number:
            return NO_STEP, None
        step = run.steps[number]
        if number not in run.prefetched:
            self._read_together(run, number)
        if number in run.prefetched:
            run.read_ids[step], records = run.prefetched.pop(number)
            return step, records
        ids = run.read_ids[step] = run.ids_of(number, self._plan)
        try:
            return step, self._source.read(ids)
        except Exception as error:
            # Saved for `failure_of`: a framework may pass on only the text of the error.
            run.failure = run.failure or (step, error)
            raise

    def _read_together(self, run: _Run, number: int) -> None:
        """Read the columns of a step and of the steps after it, as many as can be read quickly.

        For small steps the overhead of a read is larger than its work, and it holds the interpreter
        lock while the other thread computes. If a read fails, each step is read alone, because the
        step at fault may never be requested.
        """
        if self._source.layout is None:
            return
        numbers = range(number, min(number + run.num_together, len(run.steps)))
        ids = [run.ids_of(ahead_number, self._plan) for ahead_number in numbers]
        began = time.perf_counter()
        try:
            columns: list[Any] = self._source.read(np.concatenate(ids))
        except Exception:
            run.num_together = 1
            return
        is_quick = time.perf_counter() - began < QUICK_READ_SECONDS
        run.num_together = min(2 * run.num_together, MAX_STEPS_TOGETHER) if is_quick else 1
        ends = itertools.accumulate(map(len, ids))
        for step_number, step_ids, end in zip(numbers, ids, ends, strict=True):
            start = end - len(step_ids)
            run.prefetched[step_number] = step_ids, [part(column, start, end) for column in columns]

    def _make_run(
        self, number: int, lanes: range, first_step: int, last_step: int, spans: StepSpans
    ) -> _Run:
        steps: FilledSteps | range = range(first_step, last_step)
        if not self._plan.is_growing:
            steps = FilledSteps(self._plan, lanes, first=first_step, last=last_step)
        return _Run(number, lanes, steps, spans)


class ExpectedRestart:
    """A restart that begins in a thread before it is certain that it will be requested."""

    def __init__(self, restart: Callable[[range, int, int, StepSpans | None], None]) -> None:
        self._restart = restart
        self._thread: threading.Thread | None = None
        self._finished: tuple[range, int, int, StepSpans | None] | None = None

    def begin(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Begin the restart, after waiting for an earlier one to end."""
        self._wait()
        self._finished = None

        def run() -> None:
            # An error is ignored: it occurs again in the actual restart, or after it.
            with contextlib.suppress(Exception):
                self._restart(lanes, first_step, last_step, spans)
                self._finished = lanes, first_step, last_step, spans

        self._thread = threading.Thread(target=run, name="restart", daemon=True)
        self._thread.start()

    def take(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> bool:
        """Wait for the begun restart, and use it up: a second call returns False.

        Returns:
            Whether it succeeded and has these arguments, so that it need not be repeated.
        """
        self._wait()
        finished, self._finished = self._finished, None
        return finished == (lanes, first_step, last_step, spans)

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
