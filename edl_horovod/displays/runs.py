"""A job as a run of a tracker: one run through all launches of the job, and no step of it twice."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.config.fields import flat
from edl_horovod.config.schema import JobConfig
from edl_horovod.files.whole_file import read_json, write_json
from edl_horovod.job.account import Account
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EvaluationEvent, JobEvent, Recorded, StepEvent
from edl_horovod.job.json_fields import Format

_TEXT_LENGTH = 250
"""Characters of a setting's value that each tracker takes."""


@dataclass(frozen=True)
class Point:
    """Numbers by name that belong to a step."""

    time: float
    """Seconds since the epoch."""
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What a tracker has."""

    run: str = ""
    """Its name for the run."""
    step: int = -1
    """The last step with values."""
    evaluated: int = -1
    """The last step with an evaluation."""
    log: float = 0.0
    """The time of the first event of the log that was read last; each launch begins a new one."""
    num_events: int = 0
    """The number of events of that log."""


_FORMAT = Format(_Shown)


class Run:
    """The part of a job that a tracker already has; its file survives the launcher.

    A training that goes on from a checkpoint does some steps again, whose values are not shown
    again. The file is written before the values are sent, so a launcher that is lost in between
    leaves a gap, and never a step twice.
    """

    def __init__(self, config: JobConfig, display: str) -> None:
        """Open the run of a display.

        Raises:
            JobFailed: The file is damaged.
            OSError: It cannot be read or written.
        """
        job_dir = JobDir.of(config)
        self.folder = job_dir.displays / display
        """A folder for what the tracker keeps on this machine."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = Path(job_dir.path).name.removesuffix(".job")
        """The job, for people."""
        self.settings = _settings_of(config)
        """The job's settings, by key."""
        self._file = job_dir.displays / f"{display}.json"
        hint = "Remove the file to let the display begin another run."
        self._shown = read_json(self._file, _FORMAT.read, hint=hint) or _Shown()
        self._num_read = 0
        self.state = ""
        """The job's state by its last event that has one; empty before any."""
        self._account = Account()

    @property
    def id(self) -> str:
        """The tracker's name for the run; empty before `begin`."""
        return self._shown.run

    def begin(self, run_id: str) -> None:
        """Keep the tracker's name for the run, which the next launch goes on with."""
        self._save(replace(self._shown, run=run_id))

    def new_points(self, events: list[Recorded]) -> list[Point]:
        """The values in events that the tracker does not have yet."""
        shown = self._shown
        points = [point for recorded in events if (point := self._point(recorded)) is not None]
        if self._shown != shown:
            self._save(self._shown)
        return points

    def new_events(self, events: list[Recorded]) -> list[Recorded]:
        """The events that the tracker does not have yet, whatever they are about.

        A launcher that takes over a job reads its log from the beginning.
        """
        if not events:
            return []
        shown = self._shown
        if self._num_read == 0 and events[0].time != shown.log:
            shown = replace(shown, log=events[0].time, num_events=0)
        new = events[max(0, shown.num_events - self._num_read) :]
        self._num_read += len(events)
        self._save(replace(shown, num_events=max(shown.num_events, self._num_read)))
        return new

    def _point(self, recorded: Recorded) -> Point | None:
        self._account = self._account.after(recorded)
        values: dict[str, float | None] = {}
        match event := recorded.event:
            case StepEvent() if event.step > self._shown.step:
                step = event.step
                self._shown = replace(self._shown, step=step)
                values = {
                    "train/loss": event.loss,
                    **{f"train/{name}": value for name, value in event.metrics.items()},
                    "train/epoch": event.epoch,
                    "train/records_per_second": event.records_per_second,
                    "ring/ranks": event.size,
                    "ring/goodput": self._account.goodput,
                }
            case EvaluationEvent() if event.step > self._shown.evaluated:
                step = event.step
                self._shown = replace(self._shown, evaluated=step)
                values = {f"evaluation/{name}": value for name, value in event.metrics.items()}
            case JobEvent():
                self.state = event.state
                if event.metrics and (event.steps or 0) > self._shown.evaluated:
                    step = event.steps or 0  # Of edl evaluate, which has no other event of them.
                    self._shown = replace(self._shown, evaluated=step)
                    values = {f"evaluation/{name}": it for name, it in event.metrics.items()}
        numbers = {name: it for name, it in values.items() if it is not None and math.isfinite(it)}
        return Point(recorded.time, step, numbers) if numbers else None

    def _save(self, shown: _Shown) -> None:
        self._shown = shown
        write_json(self._file, _FORMAT.write(shown))


def _settings_of(config: JobConfig) -> dict[str, str]:
    """The settings by key, with short texts as values, without those that may hold a secret."""
    values = flat(resolved.to_dict(config.public()))
    return {
        key: (value if isinstance(value, str) else json.dumps(value))[:_TEXT_LENGTH]
        for key, value in values
        if value not in ("", None, {}, [])
    }
