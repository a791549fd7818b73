"""A job's directory: every path in it, and which are removed when a job starts and ends."""

import contextlib
import enum
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError, hint_of
from edl_horovod.files import marker, whole_file
from edl_horovod.job import checkpoint_files, warm_workers
from edl_horovod.records.source import JobFolders

__all__ = ["KIND", "JobDir", "lock_alone", "with_job_dir"]

KIND = "job"
_LOOK_SECONDS = 1.0
"""Longer than a look at whether a job runs takes, also on a network's file system."""


class Cleanup(enum.Enum):
    """What is done with a path at a moment in a job's life."""

    KEPT = enum.auto()
    EMPTIED = enum.auto()
    REMOVED = enum.auto()
    REMOVED_UNLESS_RESUMED = enum.auto()
    """Removed unless there is a checkpoint from which the training goes on."""


@dataclass(frozen=True)
class _Entry:
    """One path in the directory, read as an attribute of a `JobDir`."""

    name: str
    at_start: Cleanup = Cleanup.KEPT
    """When another job begins in this directory; that job overwrites kept files."""
    at_takeover: Cleanup = Cleanup.KEPT
    """When the launcher was lost together with the ring, and the next launcher starts a ring."""
    at_end: Cleanup = Cleanup.KEPT
    """When the launcher ends."""
    is_of_workers: bool = False
    """Whether workers may write it before a launcher runs; then it proves nothing about the
    folder."""

    def __get__(self, job_dir: "JobDir", owner: type) -> Path:
        return job_dir.path / self.name


@dataclass(frozen=True)
class JobDir:
    """The directory of one job. No other module spells the name of a file in it."""

    path: Path

    marker = _Entry(marker.NAME)
    """Says that the directory is a job's."""
    config = _Entry(resolved.FILE_NAME)
    """The resolved settings, which every rank reads."""
    # It is emptied, not removed: in a cluster a worker may have it open before its launcher runs.
    events = _Entry("events.jsonl", at_start=Cleanup.EMPTIED, is_of_workers=True)
    result = _Entry(
        "result.json", at_start=Cleanup.REMOVED, at_takeover=Cleanup.REMOVED, is_of_workers=True
    )
    """How the job ended."""
    result_room = _Entry(
        whole_file.room_of(Path("result.json")).name,
        at_start=Cleanup.REMOVED,
        at_end=Cleanup.REMOVED,
    )
    """Space on the disk that is reserved for the result at the start."""
    coordinator_state = _Entry("coordinator.json", at_start=Cleanup.REMOVED)
    """The coordinator's state, for the next coordinator process."""
    hosts = _Entry("hosts", at_start=Cleanup.REMOVED)
    """The hosts and slots that host discovery asks for."""
    tokens = _Entry("tokens")
    """The secret of a federated training, and the tokens of its parties."""
    # Replaced, not removed: a job of Slurm that is killed as it starts must still be known.
    job_id = _Entry("job.id")
    """Distinguishes the job from others in this directory; only for jobs that another launcher may
    take over, and for those of Slurm."""
    secret = _Entry("secret", at_end=Cleanup.REMOVED)
    """The key that authenticates messages of the job's processes, where no Secret holds it."""
    # Never removed: a process that just opened it would lock a file that no other one sees.
    launcher_pid = _Entry("launcher.pid", at_end=Cleanup.EMPTIED)
    """The launcher's process, which holds a lock on it."""
    stop_request = _Entry("stop", at_start=Cleanup.REMOVED, at_end=Cleanup.REMOVED)
    """Asks the launcher to stop the job. No process is signalled: the launcher may be a thread of a
    larger program, or run on another machine that shares the directory."""
    logs = _Entry("logs", at_start=Cleanup.REMOVED)
    # As for the checkpoints below; but that of a party outlives the start of another worker or
    # launcher in any case, because the other parties have what it has sent before.
    privacy = _Entry("privacy.json", is_of_workers=True)
    """What a training with `federated.privacy` has used up."""
    # The settings `resume` and `overwrite` decide about the checkpoints when a job starts.
    checkpoints = _Entry("checkpoints", is_of_workers=True)
    # Kept without a checkpoint as well: a resumed training that begins again must not repeat a sum.
    secure_round = _Entry("secure_round.json", is_of_workers=True)
    """The last round for which this party has sent its part of a secure sum."""
    ledger = _Entry(
        "ledger",
        at_start=Cleanup.REMOVED_UNLESS_RESUMED,
        at_takeover=Cleanup.REMOVED_UNLESS_RESUMED,
        is_of_workers=True,
    )
    """Which records each rank gave to which step (`debug.ledger`)."""
    displays = _Entry(
        "displays",
        at_start=Cleanup.REMOVED_UNLESS_RESUMED,
        at_takeover=Cleanup.REMOVED_UNLESS_RESUMED,
    )
    """What displays of other programs keep, and what they have shown (`displays`)."""
    timeline = _Entry("timeline.json.gz", at_start=Cleanup.REMOVED)
    """What each rank did when, for Perfetto (`debug.timeline`)."""
    timeline_parts = _Entry("timeline", at_start=Cleanup.REMOVED, is_of_workers=True)
    """The same as each process of a rank writes it."""
    index = _Entry("index", at_start=Cleanup.REMOVED, is_of_workers=True)
    """Facts about the data that every rank needs before it reads records, computed once."""
    adapted = _Entry("adapted", at_start=Cleanup.REMOVED_UNLESS_RESUMED, is_of_workers=True)
    """The result of the model's `adapt` for all records, computed once."""
    # A new job with the same stream has the same records, and does not need to read it again.
    records = _Entry("records", is_of_workers=True)
    """Records of data that can only be read from its beginning, read once."""
    unfinished_records = _Entry(
        "records.partial",
        at_start=Cleanup.REMOVED,
        at_takeover=Cleanup.REMOVED,
        at_end=Cleanup.REMOVED,
        is_of_workers=True,
    )
    """The same while they are written."""
    segments = _Entry("segments", at_start=Cleanup.REMOVED, is_of_workers=True)
    """Predictions that are not in the output yet."""
    discarded_segments = _Entry("segments.done", at_start=Cleanup.REMOVED, is_of_workers=True)
    """Predictions that are in the output; they are being removed."""
    warm = _Entry(warm_workers.FOLDER)
    """Sockets of workers that wait for plain horovodrun to launch them; one folder a host."""

    @classmethod
    def of(cls, config: JobConfig) -> "JobDir":
        """The directory that a job's settings name, with their `job_dir` (see `with_job_dir`)."""
        return cls(Path(config.job_dir))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def folders(self) -> JobFolders:
        """The folders in which data sources keep what they compute once for all ranks."""
        return JobFolders(self.index, self.records, self.unfinished_records)

    def claim(self) -> None:
        """Create the directory, or take one that is empty or belonged to a job.

        Raises:
            OutputError: The directory is not empty and not marked as a job's, or cannot be
                written.
        """
        with self.writing():
            marker.claim(self.path, KIND, received=self._received)

    def enter(self, config_file: Path) -> None:
        """Claim the directory for a process that may start before a launcher, or without one.

        Under plain horovodrun the user creates the directory, with the job's settings in it.

        Raises:
            OutputError: The directory holds other files and is not marked as a job's, or cannot be
                written.
        """
        with self.writing():
            is_prepared = config_file.parent.resolve() == self.path.resolve()
            names = {path.name for path in self.path.iterdir()} if is_prepared else set()
            of_workers = {entry.name for entry in _ENTRIES if entry.is_of_workers}
            marker.claim(self.path, KIND, received=self._received, may_hold=names - of_workers)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an `OSError` about the directory into an `OutputError`.

        Raises:
            OutputError: The directory cannot be written.
        """
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"The job's directory cannot be written: {error}.",
                received=self._received,
                hint=hint_of(error),
            ) from error

    def clear(
        self, moment: Literal["at_start", "at_takeover", "at_end"], *, of_workers: bool = True
    ) -> None:
        """Empty or remove the paths whose entries above say so for a moment in the job's life.

        Args:
            moment: The moment.
            of_workers: Whether also those that workers write.

        Raises:
            OSError: The directory cannot be written.
        """
        for entry in _ENTRIES:
            if entry.is_of_workers and not of_workers:
                continue
            path, cleanup = self.path / entry.name, getattr(entry, moment)
            if cleanup is Cleanup.EMPTIED:
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(path, 0)
            elif cleanup is Cleanup.REMOVED or (
                cleanup is Cleanup.REMOVED_UNLESS_RESUMED
                and not checkpoint_files.steps_in(self.checkpoints)
            ):
                _remove(path)

    def read_config(self) -> JobConfig:
        """The job's resolved settings.

        Raises:
            ConfigError: This is not the directory of a job.
        """
        if not self.config.is_file():
            raise ConfigError(
                f"There is no {self.config.name} in {self}, so it is not the directory of a job.",
                received=repr(str(self)),
                hint="Give a job's directory: unless job_dir was set, it is the output with .job at"
                " its end.",
            )
        return resolved.load(self.config)

    def is_running(self) -> bool:
        """Whether the job's launcher is alive, which only the lock on its pid file shows.

        The process id in that file may have been reused, or may be one of another machine.
        """
        try:
            with self.launcher_pid.open() as stream:
                return not _try_to_lock(stream.fileno(), fcntl.LOCK_SH)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            return True

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the directory for a process of the job that runs without a launcher.

        The lock keeps out launchers and commands that would remove the directory. A launcher that
        has locked the directory keeps them out already, so this takes no second lock then.
        """
        with self.writing():
            lock = os.open(self.launcher_pid, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    def foreign(self) -> list[str]:
        """The names of files in the directory that are not a job's."""
        paths = [path for path in self.path.iterdir() if not _is_ours(path.name)]
        if self.checkpoints.is_dir() and not self.checkpoints.is_symlink():
            paths += checkpoint_files.others_in(self.checkpoints)
        if self.logs.is_dir() and not self.logs.is_symlink():
            paths += [path for path in self.logs.iterdir() if path.suffix != ".log"]
        return sorted(str(path.relative_to(self.path)) for path in paths)

    def remove(self, *, is_dry_run: bool = False) -> list[Path]:
        """Remove the directory; a dry run only checks whether it may be removed.

        Returns:
            The removed paths: all files in the directory, and the directory itself.

        Raises:
            ConfigError: A process of the job is using it.
            OutputError: It is not a job's directory, holds files that are not a job's, or cannot be
                written.
        """
        if self.path.is_symlink() or marker.kind_of(self.path) != KIND:
            raise OutputError(
                f"No marker says that {self} is a job's directory, so it is not removed.",
                received=self._received,
                hint="Remove it by hand if you do not need it.",
            )
        if foreign := self.foreign():
            raise OutputError(
                f"The job's directory contains files that edl_horovod did not write:"
                f" {', '.join(foreign[:5])}.",
                received=self._received,
                hint="Move them away first.",
            )
        with self.writing(), contextlib.ExitStack() as stack:
            if is_dry_run:
                is_busy = self.is_running()
            else:
                lock = stack.enter_context(self.launcher_pid.open("a"))
                is_busy = not lock_alone(lock.fileno())
            if is_busy:
                raise ConfigError(
                    "The job is running, so its directory is not removed.",
                    received=self._received,
                    hint=f"Stop it first: edl stop {self}",
                )
            # The marker is removed last, so that a later call can remove what a failure leaves.
            contents = sorted(self.path.iterdir(), key=lambda path: (path == self.marker, path))
            if not is_dry_run:
                self._remove_aside(contents)
            return [*contents, self.path]

    def _remove_aside(self, contents: Sequence[Path]) -> None:
        """Rename the directory before removing it, so that no process begins to use it."""
        path = self.path.resolve()
        renamed = path.with_name(f"{path.name}.deleted-{secrets.token_hex(4)}")
        path.rename(renamed)
        for item in contents:
            moved_item = renamed / item.name
            if moved_item.is_dir() and not moved_item.is_symlink():
                shutil.rmtree(moved_item)
            else:
                moved_item.unlink(missing_ok=True)
        renamed.rmdir()

    @property
    def _received(self) -> str:
        return f"job_dir={str(self)!r}"


_ENTRIES = [entry for entry in vars(JobDir).values() if isinstance(entry, _Entry)]
_NAMES = {entry.name for entry in _ENTRIES}
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.partial")


def _is_ours(name: str) -> bool:
    """Whether this is the name of an entry, or of a partial file of a writer that was killed."""
    partial = _PARTIAL.fullmatch(name)
    return name in _NAMES or (partial is not None and partial["name"] in _NAMES)


def with_job_dir(config: JobConfig) -> JobConfig:
    """The settings with a job directory; the default is beside the output or the trained model."""
    if config.job_dir:
        return config
    if config.output:
        return replace(config, job_dir=f"{config.output.rstrip('/')}.job")
    return replace(config, job_dir=f"{config.trained_model.rstrip('/')}.{config.task}.job")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def lock_alone(descriptor: int, *, seconds: float = _LOOK_SECONDS) -> bool:
    """Lock the open pid file of a job; returns whether no other process holds it.

    Those that only look, as `is_running` does, hold it for a moment, so this waits for them, and
    for as long as `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not _try_to_lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS / 50)
    return True


def _try_to_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
