"""Trainings without a ring, for tests of sweeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.job.events import EventLog
from edl_horovod.launch.local import LocalTarget
from edl_horovod.launch.target import TARGETS
from edl_horovod.supervisor.plan import LaunchPlan
from edl_horovod.supervisor.run import JobResult
from tests.job_events import event, recorded


class Trainings(LocalTarget):
    """Stands where jobs are launched: leaves what a training leaves, or raises what it is told."""

    def __init__(self, metrics: Callable[[JobConfig], dict[str, float]]) -> None:
        self.rates: list[float | None] = []
        self.errors: dict[float | None, BaseException] = {}
        self.later_metrics: dict[str, float] | None = None
        """Of an evaluation after the one whose weights a training keeps; None for no later one."""
        self.before_launch: Callable[[], None] = lambda: None
        self._metrics = metrics
        self._ends: dict[int, BaseException] = {}

    @classmethod
    def in_place(
        cls,
        monkeypatch: pytest.MonkeyPatch,
        metrics: Callable[[JobConfig], dict[str, float]] = lambda _: {"accuracy": 0.5},
    ) -> "Trainings":
        trainings = cls(metrics)
        monkeypatch.setitem(TARGETS, "local", lambda: trainings)
        return trainings

    def end_with(self, error: BaseException, *, at: int) -> None:
        """Raise an error in the training of this number, counted from 1."""
        self._ends[at] = error

    def launch(self, plan: LaunchPlan, *, on_events: Any = None, warm: object = None) -> JobResult:
        self.before_launch()
        config = plan.config
        rate = config.train.learning_rate
        self.rates.append(rate)
        if rate in self.errors:
            raise self.errors[rate]
        if error := self._ends.get(len(self.rates)):
            raise error
        metrics = self._metrics(config)
        output, job_dir = Path(config.output), Path(config.job_dir)
        output.mkdir(parents=True, exist_ok=config.overwrite)
        (output / "trained_model.pb").touch()
        resolved.dump(config, output / "config.yaml")
        job_dir.mkdir(parents=True, exist_ok=True)
        with EventLog(job_dir / "events.jsonl", "test") as log:
            log.write(event("job", state="starting"))
            log.write(event("step", step=4, loss=rate))
            log.write(event("evaluation", step=4, metrics=metrics))
            if self.later_metrics is not None:
                log.write(event("step", step=5, loss=9.0))
                log.write(event("evaluation", step=5, metrics=self.later_metrics))
            log.write(event("job", state="finished", steps=5, metrics=metrics))
        if on_events:
            on_events([recorded("log", message=f"trained with {rate}")])
        return JobResult(output=config.output, job_dir=config.job_dir, steps=5, metrics=metrics)
