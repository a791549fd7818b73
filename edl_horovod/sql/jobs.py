"""The jobs of statements: each has a numbered folder while it runs, for SHOW JOBS and KILL.

A running statement holds a lock on a file in its folder and touches this file at intervals. On the
same machine, since its last boot, the lock decides whether the statement is alive. A shared folder
may not pass locks on to other machines: for them a statement is dead when the file has not been
touched for some time.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edl_horovod.errors import EdlError, Interrupted
from edl_horovod.files import marker
from edl_horovod.files.whole_file import write_json
from edl_horovod.launch.attached import AttachedJob, remove_attached
from edl_horovod.sql.models import write_errors

log = logging.getLogger(__name__)

_FOLDER, _KIND = ".jobs", "job of a statement"
_ENTRY, _LOCK, _KILLED = "statement.json", ".lock", "killed"
_JOB = "job"
TOUCH_SECONDS = 30.0
SILENT_SECONDS = 600.0
"""A statement of another machine whose file was not touched for this time is dead."""
MAX_FAILED_JOBS = 20
"""Number of failed jobs whose logs are kept."""


@dataclass(frozen=True, kw_only=True)
class JobEntry:
    """A job as SHOW JOBS lists it."""

    number: int
    title: str
    """The verb and its target, such as `TRAIN m`, and which of several trainings is running."""
    began: float
    """Seconds since the epoch."""
    is_running: bool
    job_dir: Path
    """Directory of the training or prediction; it exists once the rows have been read."""
    attached: AttachedJob | None = None
    """The training or prediction if it runs elsewhere."""
    predictions: str = ""
    """The model and rows of predictions that could not be written into their table; or empty."""


@dataclass(frozen=True)
class StatementJob:
    """The folder of a running statement."""

    number: int
    path: Path

    @property
    def data(self) -> Path:
        """Folder of the exported rows."""
        return self.path / "data"

    @property
    def validation(self) -> Path:
        """Folder of the exported rows for the validation."""
        return self.path / "validation-data"

    @property
    def output(self) -> Path:
        """Folder of predictions and metrics."""
        return self.path / "output"

    @property
    def version(self) -> Path:
        """The folder that becomes the version of a model."""
        return self.path / "version"

    @property
    def job_dir(self) -> Path:
        """The directory of the training or prediction, or the parent of several trainings."""
        return self.path / _JOB

    def note_training(self, part: str, job_dir: Path) -> None:
        """Record which of several trainings is running, for SHOW JOBS and KILL.

        Args:
            part: Names the training.
            job_dir: The directory of the training.
        """
        self._note(part=part, job_dir=str(job_dir))

    def note_attached(self, job: AttachedJob | None) -> None:
        """Record the statement's job elsewhere, for its removal if this process dies."""
        self._note(attached=asdict(job) if job is not None else None)

    def keep_predictions(self, source: str) -> None:
        """Leave the output for a later statement if this one fails.

        Args:
            source: Identifies the model and the rows.
        """
        self._note(predictions=source)

    def take_predictions(self, source: str) -> bool:
        """Move predictions of an earlier, failed statement here; returns whether there were any."""
        for entry in reversed(find_jobs(self.path.parent.parent)):
            if entry.predictions == source and not entry.is_running:
                output = StatementJob(entry.number, self.path.parent / str(entry.number)).output
                with contextlib.suppress(OSError):  # Another statement may have moved it.
                    output.rename(self.output)
                    return True
        return False

    @property
    def may_run_elsewhere(self) -> bool:
        """Whether a job elsewhere may still write into the folder."""
        try:
            entry = json.loads((self.path / _ENTRY).read_bytes())
        except FileNotFoundError:  # The folder was removed.
            return False
        return entry.get("attached") is not None

    def _note(self, **facts: Any) -> None:
        entry = json.loads((self.path / _ENTRY).read_bytes())
        write_json(self.path / _ENTRY, entry | facts)

    def check(self) -> None:
        """End the statement if KILL requested it.

        Raises:
            Interrupted: KILL requested it.
        """
        if (self.path / _KILLED).exists():
            raise Interrupted(f"Job {self.number} was ended by KILL {self.number}.")


@contextlib.contextmanager
def open_job(models: Path, title: str) -> Iterator[StatementJob]:
    """Create a job, whose folder is removed when the `with` ends; a failed job leaves its logs.

    Args:
        models: The folder of models, which must exist.
        title: The verb and its target.

    Raises:
        OutputError: The folder cannot be created.
        Interrupted: KILL or Ctrl-C ended the job.
    """
    with contextlib.ExitStack() as stack:
        with write_errors("The folder of a job cannot be created", models):
            _clean(models)
            number, path = _claim(models)
            stack.callback(_clean, models)
            stream = stack.enter_context((path / _LOCK).open("w"))
            fcntl.flock(stream, fcntl.LOCK_EX)
            stack.enter_context(_touching(path / _LOCK))
            # Others see the job from here on; before it has its lock they would take it for dead.
            entry = {"what": title, "began": time.time(), "boot": marker.boot_id()}
            write_json(path / _ENTRY, entry)
        job = StatementJob(number, path)
        is_kept = False
        try:
            yield job
        except (Interrupted, KeyboardInterrupt) as e:
            job.check()
            if job.may_run_elsewhere:
                raise
            # The job's own error says how to resume in a folder that is removed here.
            raise Interrupted("The statement was interrupted and its folder removed.") from e
        except EdlError:
            is_kept = job.job_dir.exists() or job.output.exists()
            raise
        finally:
            if not is_kept and not job.may_run_elsewhere:
                shutil.rmtree(job.path, ignore_errors=True)


def find_jobs(models: Path) -> tuple[JobEntry, ...]:
    """The running jobs and the last failed ones, sorted by number."""
    entries = []
    for path in _paths(models):
        # The folder may be removed in the meantime.
        with contextlib.suppress(OSError, ValueError, KeyError):
            entry = json.loads((path / _ENTRY).read_bytes())
            is_running = _is_running(path / _LOCK, entry.get("boot", ""))
            attached = entry.get("attached")
            entries.append(
                JobEntry(
                    number=int(path.name),
                    title=", ".join(filter(None, (entry["what"], entry.get("part")))),
                    began=entry["began"],
                    is_running=is_running,
                    job_dir=Path(entry.get("job_dir", path / _JOB)),
                    attached=AttachedJob(**attached) if attached else None,
                    predictions=entry.get("predictions", ""),
                )
            )
    return tuple(entries)


def request_kill(models: Path, number: int) -> None:
    """Ask a running statement to end; it checks for this between its steps and while reading rows.

    Raises:
        OSError: The job does not exist any more.
    """
    (models / _FOLDER / str(number) / _KILLED).touch()


def _claim(models: Path) -> tuple[int, Path]:
    folder = models / _FOLDER
    folder.mkdir(exist_ok=True)
    number = max((int(path.name) for path in _paths(models)), default=0) + 1
    while True:
        path = folder / str(number)
        try:
            path.mkdir(mode=0o700)  # Users may share the folder of models, but not these rows.
        except FileExistsError:
            number += 1
            continue
        marker.write(path, _KIND)
        return number, path


def _paths(models: Path) -> list[Path]:
    folder = models / _FOLDER
    paths = folder.iterdir() if folder.is_dir() else ()
    numbered = [path for path in paths if path.name.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name))


def _clean(models: Path) -> None:
    """Remove leftovers of dead and failed jobs, except the newest logs and predictions."""
    ended = [entry for entry in find_jobs(models) if not entry.is_running]
    for entry in ended:
        job = StatementJob(entry.number, models / _FOLDER / str(entry.number))
        if marker.kind_of(job.path) != _KIND or not _remove_attached(entry, job):
            continue
        if not entry.predictions:
            shutil.rmtree(job.output, ignore_errors=True)
        for folder in (job.data, job.validation, job.version):
            shutil.rmtree(folder, ignore_errors=True)
        is_empty = not job.job_dir.exists() and not job.output.exists()
        if entry in ended[:-MAX_FAILED_JOBS] or is_empty:
            shutil.rmtree(job.path, ignore_errors=True)


def _remove_attached(entry: JobEntry, job: StatementJob) -> bool:
    """Remove the job of a process that died; returns whether nothing writes any more."""
    if entry.attached is None:
        return True
    try:
        remove_attached(entry.attached)
    except EdlError as e:
        log.warning("job %s of a dead statement may still be running: %s", entry.attached.name, e)
        return False
    with contextlib.suppress(OSError):  # Another process may have removed it.
        job.note_attached(None)
    return True


def _is_running(lock: Path, boot: str) -> bool:
    with lock.open("r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    is_of_this_machine = bool(boot) and boot == marker.boot_id()
    return not is_of_this_machine and time.time() - lock.stat().st_mtime < SILENT_SECONDS


@contextlib.contextmanager
def _touching(lock: Path) -> Iterator[None]:
    """Touch a file at intervals, for machines that do not see its lock."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):  # The folder may be unreachable for a while.
                os.utime(lock)

    threading.Thread(target=touch, name="touch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
