"""`edl train -m`: one job after another, and a table of how they ended."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl_horovod.cli.layout import table
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.displays import open_displays
from edl_horovod.errors import Interrupted, JobFailed
from edl_horovod.job import log

if TYPE_CHECKING:
    from edl_horovod.config.schema import JobConfig
    from edl_horovod.config.sweep import Search
    from edl_horovod.sweeps.run import SweepJob, SweepResult

__all__ = ["run"]


def run(overrides: Sequence[str], *, files: ConfigFiles, is_dry_run: bool, is_quiet: bool) -> int:
    """Run a sweep, or show its jobs.

    Raises:
        JobFailed: One job or more failed.
        Interrupted: The user ended it.
    """
    from edl_horovod.config.sweep import Search, expand
    from edl_horovod.sweeps import run as sweeps

    points = expand(overrides, files)
    if isinstance(points, Search):
        return _search(points, files, is_dry_run=is_dry_run, is_quiet=is_quiet)
    plan = sweeps.make_plan(points, files)
    if is_dry_run:
        print(_table(plan.jobs))
        return 0
    result = sweeps.run(plan, _Runner([job.name for job in plan.jobs], is_quiet=is_quiet))
    _finish(result)
    return 0


def _search(search: "Search", files: ConfigFiles, *, is_dry_run: bool, is_quiet: bool) -> int:
    from edl_horovod.sweeps import run as sweeps
    from edl_horovod.sweeps import search as searches

    config = search.config
    if is_dry_run:
        searches.check_search(search, files)
        print(f"{config.n_trials} jobs, chosen by Optuna to {config.direction} {config.metric}:")
        for parameter in search.space.values():
            print(f"  {parameter.written}")
        return 0
    result = searches.run_search(search, files, _Runner([], is_quiet=is_quiet))
    best = ""
    if job := sweeps.best_of(result, config):
        best = f"best: {job.name} ({config.metric} {_number(job.metrics[config.metric])})"
    _finish(result, best)
    return 0


def _finish(result: "SweepResult", best: str = "") -> None:
    """Print how the jobs ended, each error once, and raise where some did not finish."""
    print(_table(result.jobs))
    for error in dict.fromkeys(job.error for job in result.failed):
        names = [job.name for job in result.failed if job.error == error]
        print(f"\nfailed: {', '.join(names)}\n  {error}")
    print(f"\noutput: {result.output} (sweep.json, sweep.csv)")
    if best:
        print(best)
    if result.is_interrupted:
        raise Interrupted(
            "The sweep was interrupted; all processes of its job have ended. "
            "The same command goes on with the jobs that are not finished."
        )
    if result.failed:
        raise JobFailed(
            f"{len(result.failed)} of {len(result.jobs)} jobs failed. "
            "The same command tries them again."
        )


class _Runner:
    """Runs one job after another with a display of its own for each."""

    def __init__(self, names: Sequence[str], *, is_quiet: bool) -> None:
        self._names = list(names)
        self._is_quiet = is_quiet

    def __call__(self, job: "SweepJob", config: "JobConfig") -> None:
        from edl_horovod import api

        if not self._is_quiet:
            of = f" {self._names.index(job.name) + 1} of {len(self._names)}" if self._names else ""
            print(f"job{of}: {_chosen(job)}", file=sys.stderr, flush=True)
        with open_displays(is_quiet=self._is_quiet) as on_events:
            log.setup("edl", level="error" if self._is_quiet else config.log_level)
            api.run(config, on_events=on_events)


def _table(jobs: Sequence["SweepJob"]) -> str:
    metrics = list(dict.fromkeys(name for job in jobs for name in job.metrics))
    measured = ["TRAIN LOSS", *(f"VAL {name}" for name in metrics), "SECONDS"]
    rows = []
    for job in jobs:
        numbers = [_number(job.metrics.get(name)) for name in metrics]
        seconds = f"{job.seconds:.1f}" if job.seconds else ""
        rows.append([*job.chosen.values(), job.state, _number(job.loss), *numbers, seconds])
    return "\n".join(table([*jobs[0].chosen, "STATE", *measured], rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _chosen(job: "SweepJob") -> str:
    return " ".join(f"{key}={value}" for key, value in job.chosen.items())
