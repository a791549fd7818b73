"""Run the jobs of statements: their settings, folders, exported rows and progress."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.launch.attached import AttachedJob, check_attached, run_attached
from edl_horovod.launch.jobs import JobStatus
from edl_horovod.launch.target import find as find_target
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.export import ExportedTable, Progress, export
from edl_horovod.sql.jobs import StatementJob, open_job
from edl_horovod.sql.models import ModelStore
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import Result
from edl_horovod.supervisor.run import JobResult

log = logging.getLogger(__name__)

RunJob = Callable[[JobConfig], JobResult]
"""Runs a job and returns its result when it has ended."""


@dataclass
class StatementContext:
    """The database, models and settings of statements, and how they run jobs."""

    settings: SqlSettings
    engine: Engine
    run_job: RunJob
    tell: Callable[[str], None] = log.info
    """Called with a sentence about a decision or about progress."""
    is_dry_run: bool = False
    """Whether statements only describe the jobs and changes that they would start."""
    store: ModelStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = ModelStore(self.settings.models)

    def columns(self, select: str) -> list[str]:
        """The names of a SELECT's columns.

        Raises:
            DataError: The database refuses the SELECT.
        """
        return [column.name for column in self.engine.select_columns(select)]

    def job(self, title: str) -> AbstractContextManager[StatementJob]:
        """A job folder for a statement; see `open_job`."""
        self.store.claim()
        return open_job(self.settings.models, title)

    def config(
        self, task: str, values: dict[str, Any], job: StatementJob, output: Path
    ) -> JobConfig:
        """The settings of a job, checked before the rows are read.

        Raises:
            EdlError: A setting is invalid.
        """
        config = self.settings.job(task, self.folder_settings(job, output) | values)
        self.check_target(config, is_dry_run=self.is_dry_run)
        return config

    @staticmethod
    def check_target(config: JobConfig, *, is_dry_run: bool = False) -> None:
        """Check before rows are read that the job's launch target can run it.

        Raises:
            EdlError: The target cannot run the job.
        """
        if find_target(config.launch.kind).is_detached:
            check_attached(config, is_dry_run=is_dry_run)

    @staticmethod
    def folder_settings(job: StatementJob, output: Path) -> dict[str, Any]:
        """The settings of the folders in which a job reads and writes."""
        return {"data": str(job.data), "output": str(output), "job_dir": str(job.job_dir)}

    def placeholder_job(self) -> StatementJob:
        """A job whose folder is not created, to show the settings of a dry run."""
        return StatementJob(0, self.settings.models / ".jobs" / "N")

    def run(self, config: JobConfig, data: Path, job: StatementJob) -> JobResult:
        """Run a job on exported rows.

        Raises:
            EdlError: The job failed; `Interrupted` if KILL or Ctrl-C ended it.
        """
        config = replace(config, data=str(data))
        if find_target(config.launch.kind).is_detached:
            return self._run_attached(config, job)
        result = self.run_job(config)
        job.check()
        return result

    def _run_attached(self, config: JobConfig, job: StatementJob) -> JobResult:
        """Submit a job and wait for it; the end of the statement ends it too."""
        last_state = ""

        def note(submitted: AttachedJob | None) -> None:
            job.note_attached(submitted)
            if submitted is not None:
                self.tell(
                    f"Job {submitted.name} is submitted; follow it by edl logs {submitted.name} -f."
                )

        def on_status(status: JobStatus) -> None:
            nonlocal last_state
            job.check()
            state = "; waiting for: ".join(filter(None, (str(status), ", ".join(status.waits_for))))
            if state != last_state:
                self.tell(f"The job is {state}.")
                last_state = state

        return run_attached(config, note=note, on_status=on_status)

    def describe_job(
        self, task: str, values: dict[str, Any], notes: tuple[str, ...] = ()
    ) -> Result:
        """The settings of the job that a statement would start."""
        job = self.placeholder_job()
        return self.settings_as_result(self.config(task, values, job, job.output), notes)

    @staticmethod
    def settings_as_result(config: JobConfig, notes: tuple[str, ...]) -> Result:
        """The settings of a job as YAML, below notes on automatic decisions."""
        comments = "".join(f"# {sentence}\n" for sentence in notes)
        return Result(message=f"{comments}{resolved.to_yaml(config)}".rstrip())

    def progress(self, job: StatementJob, action: str) -> Progress:
        """A callback that reports progress after the first second and lets KILL end the statement.

        Args:
            job: The job of the statement.
            action: Follows the number of rows, such as "rows are read".
        """
        began = time.monotonic()

        def on_progress(num_rows: int, rate: float) -> None:
            job.check()
            if time.monotonic() - began > 1:
                self.tell(f"{num_rows:,} {action}, {rate:,.0f} rows/s")

        return on_progress

    def export(
        self, select: str, folder: Path, job: StatementJob, nulls: Mapping[str, Any], **options: Any
    ) -> ExportedTable:
        """Export the rows of a SELECT for a job, with progress; see `export.export`."""
        began = time.monotonic()
        table = export(
            self.engine,
            select,
            folder,
            nulls=nulls,
            tell=self.tell,
            on_progress=self.progress(job, "rows are read"),
            **options,
        )
        self.tell(f"{table.num_rows:,} rows were read in {time.monotonic() - began:.1f} s.")
        return table
