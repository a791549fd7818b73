"""A job's directory: every path in it, and what becomes of each when a job starts and ends."""

import contextlib
import enum
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError, hint_of
from edl_horovod.files import marker, whole_file
from edl_horovod.job import checkpoint_files, handover
from edl_horovod.records.source import JobFolders

__all__ = ["KIND", "JobDir", "with_job_dir"]

KIND = "job"


class Fate(enum.Enum):
    """What becomes of a path at some moment."""

    KEPT = enum.auto()
    EMPTIED = enum.auto()
    REMOVED = enum.auto()
    REMOVED_UNLESS_RESUMED = enum.auto()
    """Removed where there is no checkpoint from which the training goes on."""


@dataclass(frozen=True)
class _Entry:
    """One path in the directory, read as an attribute of a `JobDir`."""

    name: str
    at_start: Fate = Fate.KEPT
    """When another job begins here. What that job writes at its start replaces what was kept."""
    at_takeover: Fate = Fate.KEPT
    """When the job's launcher was lost together with the ring, and the next one starts another."""
    at_end: Fate = Fate.KEPT
    """When the launcher ends."""
    is_of_workers: bool = False
    """Workers write it, perhaps before a launcher does: it proves nothing about the folder."""

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
    # Emptied, not removed: in a cluster a worker may have it open before its launcher runs.
    events = _Entry("events.jsonl", at_start=Fate.EMPTIED, is_of_workers=True)
    result = _Entry(
        "result.json", at_start=Fate.REMOVED, at_takeover=Fate.REMOVED, is_of_workers=True
    )
    """How the job ended."""
    result_room = _Entry(
        whole_file.room_of(Path("result.json")).name, at_start=Fate.REMOVED, at_end=Fate.REMOVED
    )
    """Room on the disk for that, taken at the start."""
    coordinator_state = _Entry("coordinator.json", at_start=Fate.REMOVED)
    """What outlives the coordinator's process."""
    hosts = _Entry("hosts", at_start=Fate.REMOVED)
    """What host discovery wants."""
    job_id = _Entry("job.id", at_start=Fate.REMOVED)
    """Tells the job from every other that had the directory; only one that may be taken over has
    it."""
    secret = _Entry("secret", at_end=Fate.REMOVED)
    """What the job's processes authenticate their messages with, where no Secret holds it."""
    # Never removed: a process that just opened it would lock a file that no other one sees.
    launcher_pid = _Entry("launcher.pid", at_end=Fate.EMPTIED)
    """The launcher's process, which holds a lock on it."""
    stop_request = _Entry("stop", at_start=Fate.REMOVED, at_end=Fate.REMOVED)
    """Asks the launcher to stop the job. No process is signalled: the launcher may be a thread of a
    larger program, or run on another machine that shares the directory."""
    logs = _Entry("logs", at_start=Fate.REMOVED)
    # The settings `resume` and `overwrite` say what becomes of them when a job starts.
    checkpoints = _Entry("checkpoints", is_of_workers=True)
    ledger = _Entry(
        "ledger",
        at_start=Fate.REMOVED_UNLESS_RESUMED,
        at_takeover=Fate.REMOVED_UNLESS_RESUMED,
        is_of_workers=True,
    )
    """Which records each rank gave to which step (`debug.ledger`)."""
    index = _Entry("index", at_start=Fate.REMOVED, is_of_workers=True)
    """What every rank needs to know of the data before it reads it, found out once."""
    adapted = _Entry("adapted", at_start=Fate.REMOVED_UNLESS_RESUMED, is_of_workers=True)
    """What the model was to know of all records, found out once."""
    # A new job with the same stream has the same records, and need not read it again.
    records = _Entry("records", is_of_workers=True)
    """Records of data that can only be read from its begin, read once."""
    unfinished_records = _Entry(
        "records.partial",
        at_start=Fate.REMOVED,
        at_takeover=Fate.REMOVED,
        at_end=Fate.REMOVED,
        is_of_workers=True,
    )
    """The same while they are written."""
    segments = _Entry("segments", at_start=Fate.REMOVED, is_of_workers=True)
    """Predictions that are not in the output yet."""
    discarded_segments = _Entry("segments.done", at_start=Fate.REMOVED, is_of_workers=True)
    """Predictions that are in the output; they are being removed."""
    warm = _Entry(handover.FOLDER)
    """Sockets of workers that wait for plain horovodrun to launch them; one folder a host."""

    @classmethod
    def of(cls, config: JobConfig) -> "JobDir":
        """The directory that a job's settings name, with their `job_dir` (see `with_job_dir`)."""
        return cls(Path(config.job_dir))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def folders(self) -> JobFolders:
        """Where the sources of the job's data keep what they find out once for all ranks."""
        return JobFolders(self.index, self.records, self.unfinished_records)

    def claim(self) -> None:
        """Make the directory, or take one that is empty or was a job's before.

        Raises:
            OutputError: It holds something, and nothing says that it is a job's; or it cannot be
                written.
        """
        with self.writing():
            marker.claim(self.path, KIND, received=self._received)

    def enter(self, config_file: Path) -> None:
        """Claim the directory for a process that may come before its launcher, or without one.

        Under plain horovodrun the user makes the directory, with the job's settings in it.

        Raises:
            OutputError: It holds something else than that, and nothing says that it is a job's; or
                it cannot be written.
        """
        with self.writing():
            is_prepared = config_file.parent.resolve() == self.path.resolve()
            names = {path.name for path in self.path.iterdir()} if is_prepared else set()
            of_workers = {entry.name for entry in _ENTRIES if entry.is_of_workers}
            marker.claim(self.path, KIND, received=self._received, may_hold=names - of_workers)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a system's error about writing into the directory into an `OutputError`.

        Raises:
            OutputError: It cannot be written.
        """
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"The job's directory cannot be written: {error}.",
                received=self._received,
                hint=hint_of(error),
            ) from error

    def clear(self, moment: Literal["at_start", "at_takeover", "at_end"]) -> None:
        """Empty or remove what the table above says for a moment in the job's life.

        Raises:
            OSError: The directory cannot be written.
        """
        for entry in _ENTRIES:
            path, fate = self.path / entry.name, getattr(entry, moment)
            if fate is Fate.EMPTIED:
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(path, 0)
            elif fate is Fate.REMOVED or (
                fate is Fate.REMOVED_UNLESS_RESUMED
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
                f"There is no {self.config.name} in {self}, so it is no job's directory.",
                received=repr(str(self)),
                hint=(
                    "Give a job's directory: unless job_dir was set it is the output with .job at"
                    " its end."
                ),
            )
        return resolved.load(self.config)

    def is_running(self) -> bool:
        """Whether the job's launcher is alive: only the lock of its pid file says so.

        The number in that file may be another process' by now, or one of another machine.
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
        """Keep launchers and removers out, for a process of the job that no launcher looks after.

        Where a launcher holds the directory, it keeps them out itself.
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
        """The names of what is in the directory and is no job's."""
        paths = [path for path in self.path.iterdir() if not _is_ours(path.name)]
        if self.checkpoints.is_dir() and not self.checkpoints.is_symlink():
            paths += checkpoint_files.others_in(self.checkpoints)
        if self.logs.is_dir() and not self.logs.is_symlink():
            paths += [path for path in self.logs.iterdir() if path.suffix != ".log"]
        return sorted(str(path.relative_to(self.path)) for path in paths)

    def remove(self, *, is_dry_run: bool = False) -> list[Path]:
        """Remove the directory; a dry run only checks whether it may be.

        Returns:
            What is removed: all that is in it, and the directory itself.

        Raises:
            ConfigError: A process of the job works in it.
            OutputError: It is no job's directory, holds something that is not a job's, or cannot be
                written.
        """
        if self.path.is_symlink() or marker.kind_of(self.path) != KIND:
            raise OutputError(
                f"No marker says that {self} is a job's directory, so it is not removed.",
                received=self._received,
                hint="Remove it by hand if it is not needed.",
            )
        if foreign := self.foreign():
            raise OutputError(
                f"The job's directory holds what is not the job's: {', '.join(foreign[:5])}.",
                received=self._received,
                hint="Move that away first.",
            )
        with self.writing(), contextlib.ExitStack() as stack:
            if is_dry_run:
                is_busy = self.is_running()
            else:
                lock = stack.enter_context(self.launcher_pid.open("a"))
                is_busy = not _try_to_lock(lock.fileno(), fcntl.LOCK_EX)
            if is_busy:
                raise ConfigError(
                    "The job is running, so its directory is not removed.",
                    received=self._received,
                    hint=f"Stop it first: edl stop {self}",
                )
            # The marker goes last: what a failure leaves is known as a job's, and removed as such.
            contents = sorted(self.path.iterdir(), key=lambda path: (path == self.marker, path))
            if not is_dry_run:
                self._remove_aside(contents)
            return [*contents, self.path]

    def _remove_aside(self, contents: Sequence[Path]) -> None:
        """Remove the directory under another name, so that no process begins to use it."""
        path = self.path.resolve()
        doomed = path.with_name(f"{path.name}.deleted-{secrets.token_hex(4)}")
        path.rename(doomed)
        for item in contents:
            gone = doomed / item.name
            if gone.is_dir() and not gone.is_symlink():
                shutil.rmtree(gone)
            else:
                gone.unlink(missing_ok=True)
        doomed.rmdir()

    @property
    def _received(self) -> str:
        return f"job_dir={str(self)!r}"


_ENTRIES = [entry for entry in vars(JobDir).values() if isinstance(entry, _Entry)]
_OURS = {entry.name for entry in _ENTRIES}
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.partial")


def _is_ours(name: str) -> bool:
    """Whether an entry has this name, or was being written under it when its writer was killed."""
    partial = _PARTIAL.fullmatch(name)
    return name in _OURS or (partial is not None and partial["name"] in _OURS)


def with_job_dir(config: JobConfig) -> JobConfig:
    """The settings with their job directory: beside the output, or beside the evaluated model."""
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


def _try_to_lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
