"""The real worker, with clocks around what only an elastic ring needs in a step, and checkpoints.

Counted as elastic: the state's `commit`, the membership's `wants_change`, `progress` and `doing`
(what a rank is at, for who looks for hangs), the events, and the making of the flag's tensor. The
flag itself is one float more in the step's one collective. Counted as checkpoints: all that happens
between two steps, which is everything but the writing in its thread.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.common import COST_FOLDER_VARIABLE, WARMUP_VARIABLE, StepClock
from edl_horovod.files.whole_file import write_json
from edl_horovod.job.events import EventLog
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Membership
from edl_horovod.worker import __main__ as worker

FLAG_TRIES = 2000


class _Cost:
    """Seconds spent in wrapped calls, the warm-up left out."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._seconds_of_warmup = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def with_clock(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - began

        return with_clock

    def end_warmup(self) -> None:
        self._seconds_of_warmup = self._seconds

    @property
    def seconds(self) -> float:
        return self._seconds - self._seconds_of_warmup


class _Costs:
    """The clocks of one worker."""

    def __init__(self, warmup_steps: int) -> None:
        self._clock = StepClock(warmup_steps)
        self.elastic = _Cost()
        self.checkpoints = _Cost()

    def timed_commit(self, commit: Callable[[], None]) -> Callable[[], None]:
        timed = self.elastic.timed(commit)

        def commit_and_tick() -> None:
            timed()
            self._clock.tick()
            if self._clock.num_timed_steps == 0:
                self.elastic.end_warmup()
                self.checkpoints.end_warmup()

        return commit_and_tick

    def numbers(self) -> dict[str, float]:
        num_steps, step_seconds = self._clock.num_timed_steps, self._clock.step_seconds
        elastic = self.elastic.seconds / num_steps + _flag_seconds()
        checkpoints = self.checkpoints.seconds / num_steps
        return {
            "elastic_microseconds": 1e6 * elastic,
            "elastic_share": elastic / step_seconds,
            "checkpoint_microseconds": 1e6 * checkpoints,
            "checkpoint_share": checkpoints / step_seconds,
        }


def main() -> int:
    """Be a worker until dismissed; returns the process' exit code."""
    run = loop.run

    def timed_run(work: Any, membership: Membership, events: EventLog) -> dict[str, Any]:
        costs = _Costs(int(os.environ[WARMUP_VARIABLE]))
        cost = costs.elastic
        state, replace = work.state, object.__setattr__
        replace(state, "commit", costs.timed_commit(state.commit))
        replace(membership, "wants_change", cost.timed(membership.wants_change))
        replace(membership, "progress", cost.timed(membership.progress))
        replace(membership, "doing", cost.timed(membership.doing))
        replace(work, "records_seen", cost.timed(work.records_seen))
        replace(events, "write", cost.timed(events.write))
        saver = work._checkpoints
        replace(saver, "after_step", costs.checkpoints.timed(saver.after_step))
        result = run(work, membership, events)
        folder = Path(os.environ[COST_FOLDER_VARIABLE])
        write_json(folder / f"cost.{os.environ['EDL_SLOT']}.json", costs.numbers())
        return result

    # The worker looks it up when it is warm: the one place where work and membership meet.
    loop.run = timed_run
    return worker.main()


def _flag_seconds() -> float:
    """What it takes to hand the flag to the step; inside `KerasStep.step`, so tried apart."""
    began = time.perf_counter()
    for _ in range(FLAG_TRIES):
        tf.constant(float(False))
    return (time.perf_counter() - began) / FLAG_TRIES


if __name__ == "__main__":
    sys.exit(main())
