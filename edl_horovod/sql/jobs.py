"""The jobs of statements: a numbered folder for each while it works, for SHOW JOBS and KILL.

A statement that works holds a lock on a file in its folder, and touches that file now and then.
On the same running machine the lock decides whether it is dead. A shared folder may not tell
other machines of locks: for them it is dead once nothing was heard of it for some time.
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
from typing import Any, TextIO

from edl_horovod.errors import EdlError, Interrupted, OutputError, hint_of
from edl_horovod.files import marker
from edl_horovod.files.whole_file import write_json
from edl_horovod.launch.attached import AttachedJob, remove_attached

__all__ = ["JobEntry", "StatementJob", "find_jobs", "open_job", "request_kill"]

log = logging.getLogger(__name__)

_FOLDER, _KIND = ".jobs", "job of a statement"
_ENTRY, _LOCK, _KILLED = "statement.json", ".lock", "killed"
_DATA, _OUTPUT, _JOB, _VERSION = "data", "output", "job", "version"
TOUCH_SECONDS = 30.0
SILENT_SECONDS = 600.0
"""After so long without a touch a statement of another machine is dead."""
MOST_KEPT = 20
"""Failed jobs whose logs are kept."""


@dataclass(frozen=True, kw_only=True)
class JobEntry:
    """A job as SHOW JOBS lists it."""

    number: int
    what: str
    """The verb and what it makes: `TRAIN m`, and which of several trainings runs."""
    began: float
    """Seconds since the epoch."""
    is_running: bool
    job_dir: Path
    """Of the training or the prediction that runs; it is there once the rows have been read."""
    in_cluster: AttachedJob | None = None
    """The training or the prediction, where it runs in a cluster."""
    predictions: str = ""
    """What its output are predictions of, where those could not be written into their table."""


@dataclass(frozen=True)
class StatementJob:
    """The folder of a statement that works."""

    number: int
    path: Path

    @property
    def data(self) -> Path:
        """Where the rows go."""
        return self.path / _DATA

    @property
    def validation(self) -> Path:
        """Where the rows of the validation go."""
        return self.path / f"validation-{_DATA}"

    @property
    def output(self) -> Path:
        """Where predictions and metrics go."""
        return self.path / _OUTPUT

    @property
    def version(self) -> Path:
        """The folder that becomes the version of a model."""
        return self.path / _VERSION

    @property
    def job_dir(self) -> Path:
        """The directory of the training or the prediction; of several trainings, theirs."""
        return self.path / _JOB

    def show(self, part: str, job_dir: Path) -> None:
        """Say which of several trainings runs, for SHOW JOBS and KILL.

        Args:
            part: Which one it is.
            job_dir: Of that one.
        """
        self._note(part=part, job_dir=str(job_dir))

    def note_in_cluster(self, job: AttachedJob | None) -> None:
        """Say which job in a cluster works for the statement, so that none is left behind."""
        self._note(in_cluster=asdict(job) if job is not None else None)

    def keep_predictions(self, of: str) -> None:
        """Leave the output to a later statement when this one fails.

        Args:
            of: Names the model and the rows.
        """
        self._note(predictions=of)

    def take_predictions(self, of: str) -> bool:
        """Make the output of an earlier statement that failed this one's; whether there is one."""
        for entry in reversed(find_jobs(self.path.parent.parent)):
            if entry.predictions == of and not entry.is_running:
                output = StatementJob(entry.number, self.path.parent / str(entry.number)).output
                with contextlib.suppress(OSError):  # Another statement may be faster.
                    output.rename(self.output)
                    return True
        return False

    @property
    def may_run_in_cluster(self) -> bool:
        """Whether a job in a cluster may still write into the folder."""
        try:
            entry = json.loads((self.path / _ENTRY).read_bytes())
        except FileNotFoundError:  # Somebody removed it.
            return False
        return entry.get("in_cluster") is not None

    def _note(self, **facts: Any) -> None:
        entry = json.loads((self.path / _ENTRY).read_bytes())
        write_json(self.path / _ENTRY, entry | facts)

    def check(self) -> None:
        """End the statement if somebody asked for that.

        Raises:
            Interrupted: Somebody did.
        """
        if (self.path / _KILLED).exists():
            raise Interrupted(f"Job {self.number} was ended by KILL {self.number}.")


@contextlib.contextmanager
def open_job(models: Path, what: str) -> Iterator[StatementJob]:
    """A new job, whose folder is gone when the `with` ends; a failed one leaves its logs.

    Args:
        models: The folder of models, which is there.
        what: The verb and what it makes.

    Raises:
        OutputError: The folder cannot be made.
        Interrupted: Somebody ended the job.
    """
    with contextlib.ExitStack() as stack:
        try:
            _clean(models)
            number, path = _claim(models)
            stack.callback(_clean, models)
            stream = stack.enter_context((path / _LOCK).open("w"))
            fcntl.flock(stream, fcntl.LOCK_EX)
            stack.enter_context(_touching(path / _LOCK))
            # Only now is it seen by others, who take one without a lock for dead.
            entry = {"what": what, "began": time.time(), "boot": marker.boot_id()}
            write_json(path / _ENTRY, entry)
        except OSError as e:
            raise OutputError(
                f"The folder of a job cannot be made: {e}.",
                received={"models": models},
                hint=hint_of(e),
            ) from e
        job = StatementJob(number, path)
        is_kept = False
        try:
            yield job
        except (Interrupted, KeyboardInterrupt) as e:
            job.check()
            if job.may_run_in_cluster:
                raise
            # The job's own error says how to go on in a folder that is removed now.
            raise Interrupted("The statement was interrupted; nothing of it is left.") from e
        except EdlError:
            is_kept = job.job_dir.exists() or job.output.exists()
            raise
        finally:
            if not is_kept and not job.may_run_in_cluster:
                shutil.rmtree(job.path, ignore_errors=True)


def find_jobs(models: Path) -> tuple[JobEntry, ...]:
    """The jobs that are there, by their numbers: those that work, and the last that failed."""
    found = []
    for path in _paths(models):
        # It may be removed while we look.
        with contextlib.suppress(OSError, ValueError, KeyError):
            entry = json.loads((path / _ENTRY).read_bytes())
            is_running = _is_running(path / _LOCK, entry.get("boot", ""))
            in_cluster = entry.get("in_cluster")
            found.append(
                JobEntry(
                    number=int(path.name),
                    what=", ".join(filter(None, (entry["what"], entry.get("part")))),
                    began=entry["began"],
                    is_running=is_running,
                    job_dir=Path(entry.get("job_dir", path / _JOB)),
                    in_cluster=AttachedJob(**in_cluster) if in_cluster else None,
                    predictions=entry.get("predictions", ""),
                )
            )
    return tuple(found)


def request_kill(models: Path, number: int) -> None:
    """Ask a statement that works to end; it looks between its parts, and while it reads rows.

    Raises:
        OSError: It is gone.
    """
    (models / _FOLDER / str(number) / _KILLED).touch()


def _claim(models: Path) -> tuple[int, Path]:
    folder = models / _FOLDER
    folder.mkdir(exist_ok=True)
    number = max((int(path.name) for path in _paths(models)), default=0) + 1
    while True:
        path = folder / str(number)
        try:
            path.mkdir(mode=0o700)  # The folder of models may be shared; the rows are not.
        except FileExistsError:
            number += 1
            continue
        marker.write(path, _KIND)
        return number, path


def _paths(models: Path) -> list[Path]:
    folder = models / _FOLDER
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if path.name.isdecimal()), key=lambda it: int(it.name))


def _clean(models: Path) -> None:
    """Remove what dead processes and failed jobs left, but the newest logs and predictions."""
    ended = [entry for entry in find_jobs(models) if not entry.is_running]
    for entry in ended:
        job = StatementJob(entry.number, models / _FOLDER / str(entry.number))
        if marker.kind_of(job.path) != _KIND or not _is_out_of_cluster(entry, job):
            continue
        if not entry.predictions:
            shutil.rmtree(job.output, ignore_errors=True)
        for folder in (job.data, job.validation, job.version):
            shutil.rmtree(folder, ignore_errors=True)
        is_empty = not job.job_dir.exists() and not job.output.exists()
        if entry in ended[:-MOST_KEPT] or is_empty:
            shutil.rmtree(job.path, ignore_errors=True)


def _is_out_of_cluster(entry: JobEntry, job: StatementJob) -> bool:
    """Remove what a dead process left in a cluster; whether nothing of it can write any more."""
    if entry.in_cluster is None:
        return True
    try:
        remove_attached(entry.in_cluster)
    except EdlError as e:
        log.warning("Job %s of a dead statement may still run: %s", entry.in_cluster.name, e)
        return False
    with contextlib.suppress(OSError):  # Another process may have removed it.
        job.note_in_cluster(None)
    return True


def _is_running(lock: Path, boot: str) -> bool:
    with lock.open("r+") as stream:
        if not _try_to_lock(stream):
            return True
    is_of_this_machine = bool(boot) and boot == marker.boot_id()
    return not is_of_this_machine and time.time() - lock.stat().st_mtime < SILENT_SECONDS


@contextlib.contextmanager
def _touching(lock: Path) -> Iterator[None]:
    """Touch a file now and then, for machines that do not see its lock."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):  # The folder may be out of reach for a while.
                os.utime(lock)

    threading.Thread(target=touch, name="touch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _try_to_lock(stream: TextIO) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
