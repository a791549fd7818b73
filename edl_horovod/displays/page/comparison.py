"""Several jobs beside each other, such as those of a sweep: how far, how good, and at what cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.fields import flat
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.page.snapshot import Point
from edl_horovod.displays.text import JobTable, cost_sentences
from edl_horovod.files import json_text
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.job.account import STEP_CAUSES
from edl_horovod.job.events import fields_of
from edl_horovod.job.pace import Pace
from edl_horovod.job.resets import Reset
from edl_horovod.job.state import JobState, TargetDetails

__all__ = ["ComparedJob", "as_json", "comparison_table", "settings_table", "shown_settings"]

_HEADER = ("JOB", "STATE", "STEP", "LOSS")
_COSTS = (
    "SECONDS",
    "RECORDS/S",
    "GOODPUT",
    "RANK-SECONDS",
    "RESETS",
    "LOST RANKS",
    "MOST BESIDE STEPS",
)
_PLACES = ("origins", "output", "job_dir")
"""Settings that say nothing about how a job trains."""
_NUM_CAUSES = 2
"""Causes that are named for each job."""


@dataclass(frozen=True)
class ComparedJob:
    """One of the jobs."""

    name: str
    state: str
    """As its launch target tells it."""
    progress: JobState
    details: TargetDetails | None
    """What its launch target tells; None where it tells nothing."""
    slowest: Pace | None
    loss: tuple[Point, ...]
    """Over steps."""
    resets: tuple[Reset, ...]
    """The newest last."""

    @property
    def seconds(self) -> float | None:
        """From the begin of its first rank to its last account; None without any."""
        ranks = self.progress.account.ranks
        if not ranks:
            return None
        return max(rank.until for rank in ranks) - min(rank.begin for rank in ranks)


def comparison_table(jobs: Sequence[ComparedJob]) -> JobTable:
    """A row for each job, and a column for each metric that any of them has."""
    metrics = list(dict.fromkeys(name for job in jobs for name in job.progress.metrics))
    header = (*_HEADER, *(name.upper() for name in metrics), *_COSTS)
    return JobTable("Jobs", header, [_row(job, metrics) for job in jobs])


def shown_settings(config: JobConfig) -> dict[str, str]:
    """The settings of a job by their keys, without what may be secret, for `settings_table`."""
    return {
        key: without_secrets(json_text.dumps(value, ensure_ascii=False))
        for key, value in flat(resolved.to_dict(config.public()))
        if key.partition(".")[0] not in _PLACES
    }


def settings_table(jobs: Mapping[str, Mapping[str, str]]) -> JobTable:
    """A row for each job, and a column for each setting in which they differ; no rows if none."""
    keys = dict.fromkeys(key for settings in jobs.values() for key in settings)
    differing = [key for key in keys if len({it.get(key, "") for it in jobs.values()}) > 1]
    rows = [(job, *(it.get(key, "") for key in differing)) for job, it in jobs.items()]
    return JobTable("Settings that differ", ("JOB", *differing), rows if differing else [])


def _row(job: ComparedJob, metrics: Sequence[str]) -> tuple[str, ...]:
    state, account = job.progress, job.progress.account
    total = sum(account.seconds.values())
    costs = {cause: spent for cause, spent in account.seconds.items() if cause not in STEP_CAUSES}
    largest = sorted(costs.items(), key=lambda cost: -cost[1])[:_NUM_CAUSES]
    return (
        job.name,
        job.state,
        f"{state.done:,}",
        _number(state.loss),
        *(_number(state.metrics.get(name)) for name in metrics),
        "" if job.seconds is None else f"{job.seconds:,.1f}",
        "" if state.records_per_second is None else f"{state.records_per_second:,.0f}",
        "" if account.goodput is None else f"{account.goodput:.1%}",
        f"{total:,.1f}",
        str(state.num_resets),
        str(state.stops.num_losses),
        ", ".join(f"{cause} {spent / total:.1%}" for cause, spent in largest),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def as_json(jobs: Sequence[ComparedJob]) -> list[dict[str, Any]]:
    """The same for programs, with the whole account of each job."""
    return [
        {
            "job": job.name,
            "state": job.state,
            "step": job.progress.done,
            "loss": job.progress.loss,
            "metrics": job.progress.metrics,
            "total_seconds": job.seconds,
            "records_per_second": job.progress.records_per_second,
            "num_resets": job.progress.num_resets,
            "num_lost_ranks": job.progress.stops.num_losses,
            **job.progress.account.for_programs(),
            "costs": cost_sentences(job.progress),
            "resets": [_reset_as_json(reset) for reset in job.resets],
            "slowest": None if job.slowest is None else asdict(job.slowest),
            "stops": job.progress.stops.for_programs(),
        }
        for job in jobs
    ]


def _reset_as_json(reset: Reset) -> dict[str, Any]:
    return {"time": reset.time, **fields_of(reset.event), "parts": reset.part_seconds}
