"""What statements that run jobs have in common: their database, models, settings and folders."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.launch import target
from edl_horovod.launch.attached import AttachedJob, check_attached, run_attached
from edl_horovod.launch.jobs import JobStatus
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.export import ExportedTable, Progress, export
from edl_horovod.sql.jobs import StatementJob, open_job
from edl_horovod.sql.kinds import Kind
from edl_horovod.sql.models import ModelStore
from edl_horovod.sql.results import Result
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.target import TargetPlan
from edl_horovod.supervisor.run import JobResult

__all__ = ["RunJob", "Work"]

log = logging.getLogger(__name__)

RunJob = Callable[[JobConfig], JobResult]
"""Runs a job and returns when it has ended."""


@dataclass
class Work:
    """Where statements run."""

    settings: SqlSettings
    engine: Engine
    run_job: RunJob
    tell: Callable[[str], None] = log.info
    """Is called with a sentence about what was decided, or how far it is."""
    is_dry_run: bool = False
    """Whether a statement that would start a job, or change something, only says so."""
    store: ModelStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = ModelStore(self.settings.models)

    def columns(self, select: str) -> list[str]:
        """The names of the columns that a SELECT gives.

        Raises:
            DataError: The database refuses it.
        """
        return [column.name for column in self.engine.select_columns(select)]

    @contextmanager
    def job(self, what: str) -> Iterator[StatementJob]:
        """A folder for what a statement makes on its way; see `open_job`."""
        self.store.claim()
        with open_job(self.settings.models, what) as job:
            yield job

    def config(
        self, task: str, values: dict[str, Any], job: StatementJob, output: Path
    ) -> JobConfig:
        """The settings of a job, checked before the rows are read.

        Raises:
            EdlError: One is wrong.
        """
        config = self.settings.job(task, self.places(job, output) | values)
        self.check_place(config)
        return config

    @staticmethod
    def check_place(config: JobConfig) -> None:
        """Refuse a job that cannot run where it is to, before rows are read for it.

        Raises:
            EdlError: It cannot.
        """
        if target.find(config.launch.kind).is_detached:
            check_attached(config)

    @staticmethod
    def places(job: StatementJob, output: Path) -> dict[str, Any]:
        """The settings that say where a job reads and writes."""
        return {"data": str(job.data), "output": str(output), "job_dir": str(job.job_dir)}

    def dry_job(self) -> StatementJob:
        """Stands for a job that is not made, where its places are shown."""
        return StatementJob(0, self.settings.models / ".jobs" / "N")

    def run(self, config: JobConfig, data: Path, job: StatementJob) -> JobResult:
        """Run a job on exported rows.

        Raises:
            EdlError: The job failed; `Interrupted` where somebody ended it.
        """
        config = replace(config, data=str(data))
        if target.find(config.launch.kind).is_detached:
            return self._run_in_cluster(config, job)
        result = self.run_job(config)
        job.check()
        return result

    def _run_in_cluster(self, config: JobConfig, job: StatementJob) -> JobResult:
        """Submit a job, and wait for it; whoever ends the statement ends it."""
        told = ""

        def note(submitted: AttachedJob | None) -> None:
            job.note_in_cluster(submitted)
            if submitted is not None:
                self.tell(f"Job {submitted.name} is submitted: edl logs {submitted.name} -f.")

        def on_status(status: JobStatus) -> None:
            nonlocal told
            job.check()
            says = "; it waits for: ".join(filter(None, (str(status), ", ".join(status.waits_for))))
            if says != told:
                self.tell(f"The job is {says}.")
                told = says

        return run_attached(config, note=note, on_status=on_status)

    def dry(self, task: str, values: dict[str, Any], told: tuple[str, ...] = ()) -> Result:
        """The settings of the job that a statement would start."""
        job = self.dry_job()
        config = self.settings.job(task, self.places(job, job.output) | values)
        self.check_place(config)
        return self.shown(config, told)

    @staticmethod
    def shown(config: JobConfig, told: tuple[str, ...]) -> Result:
        """The settings of a job, below what was decided for the user."""
        notes = "".join(f"# {sentence}\n" for sentence in told)
        return Result(message=f"{notes}{resolved.to_yaml(config)}".rstrip())

    def progress(self, job: StatementJob, what: str) -> Progress:
        """Says how far something is that takes longer than a second, and lets KILL end it.

        Args:
            job: Of the statement.
            what: Follows a number: "rows are read".
        """
        began = time.monotonic()

        def on_progress(num_rows: int, rate: float) -> None:
            job.check()
            if time.monotonic() - began > 1:
                self.tell(f"{num_rows:,} {what}, {rate:,.0f} rows/s")

        return on_progress

    def export(
        self,
        select: str,
        folder: Path,
        job: StatementJob,
        nulls: Mapping[str, Any],
        *,
        into: TargetPlan | None = None,
        columns: Collection[str] | None = None,
        num_first_rows: int = 0,
        dates: Mapping[str, Kind | None] | None = None,
        kept_nulls: Collection[str] = (),
    ) -> ExportedTable:
        """Write the rows of a SELECT where a job reads them; see `export.export`."""
        began = time.monotonic()
        found = export(
            self.engine,
            select,
            folder,
            nulls=nulls,
            tell=self.tell,
            on_progress=self.progress(job, "rows are read"),
            target=into,
            columns=columns,
            num_first_rows=num_first_rows,
            dates=dates,
            kept_nulls=kept_nulls,
        )
        self.tell(f"{found.num_rows:,} rows were read in {time.monotonic() - began:.1f} s.")
        return found
