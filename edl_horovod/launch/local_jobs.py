"""Jobs on this machine, by their directories, for the verbs and the client."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import check_change
from edl_horovod.displays.page.snapshot import DirectorySource, Source
from edl_horovod.displays.text import local_state
from edl_horovod.errors import ConfigError
from edl_horovod.files import marker
from edl_horovod.job import events, hosts
from edl_horovod.job.directory import KIND, JobDir
from edl_horovod.job.events import AccountEvent, OnEvents, Recorded, Tail
from edl_horovod.job.state import JobState, summarize
from edl_horovod.launch import target
from edl_horovod.launch.jobs import EventLine, JobRow, Jobs, JobStatus, LogLine, event_line
from edl_horovod.supervisor.plan import LOCAL_HOST
from edl_horovod.supervisor.run import STOP_SECONDS, JobResult

if TYPE_CHECKING:
    from edl_horovod.displays.page.folder import Folder, ListJobs

__all__ = ["LocalJobs", "directory_of", "folder_of", "is_ours", "read_logs"]

LIST_DEPTH = 3
"""How many levels of folders are searched for jobs."""
LOOK_SECONDS = 0.2
"""Time between two checks for new events, or for new lines of a log."""


class LocalJobs(Jobs):
    """Jobs of launch=local and launch=mpi."""

    def __init__(self) -> None:
        self._summaries: dict[Path, _Summary] = {}

    def list(self, folders: Sequence[str] = (), *, all_namespaces: bool = False) -> list[JobRow]:
        """The jobs in and below some folders, by their directories."""
        directories = {os.path.normpath(job) for folder in folders for job in _jobs_below(folder)}
        return [self._row(job) for job in sorted(directories)]

    def exists(self, job: str) -> bool:
        """Whether this is the directory of a job."""
        return directory_of(job).config.is_file()

    def config(self, job: str) -> JobConfig:
        """Read the settings of the job in this directory."""
        return directory_of(job).read_config()

    def status(self, job: str, *, is_brief: bool = False) -> JobStatus:
        """Determine the state from the job's events and from whether its launcher runs."""
        job_dir = directory_of(job)
        # Determined before the events are read: a launcher writes the job's end, and then ends.
        is_running = job_dir.is_running()
        path = Path(os.path.abspath(job_dir.events))
        known = self._summaries.setdefault(path, _Summary(path)).newest()
        state = local_state(
            job_dir,
            known.state,
            is_ours=known.is_ours,
            is_running=is_running,
            last_time=known.last_time,
        )
        return JobStatus(progress=state, is_at_rest=not is_running)

    def source(self, job: str) -> Source:
        """The job's directory, in which the job may also start later."""
        return DirectorySource(directory_of(job))

    def logs(self, job: str, worker: str, *, follow: bool, tail: int | None) -> Iterator[LogLine]:
        """Yield the log lines of the launcher and of the processes that it started."""
        self.config(job)
        is_over = (lambda: not JobDir(Path(job)).is_running()) if follow else None
        return read_logs(JobDir(Path(job)).logs, only=worker, tail=tail, is_over=is_over)

    def member(self, job: str, rank: int) -> str:
        """The worker that has a rank now; only for jobs whose workers have logs of their own."""
        kind = self.config(job).launch.kind
        if not target.find(kind).is_elastic:
            raise ConfigError(
                "All ranks of a static ring write to one log.",
                received=f"--rank={rank}, launch.kind={kind}",
                hint=f"Read it by edl logs {job} --worker worker",
            )
        return super().member(job, rank)

    def events(self, job: str, *, follow: bool = False) -> Iterator[EventLine]:
        """Yield the events in the job's directory."""
        self.config(job)
        tail = Tail(JobDir(Path(job)).events)
        while True:
            is_last = not follow or not JobDir(Path(job)).is_running()
            yield from map(event_line, tail.new_events())
            if is_last:
                return
            time.sleep(LOOK_SECONDS)

    def recorded(self, job: str) -> Iterable[Recorded]:
        """The events in the job's directory."""
        self.config(job)
        return events.read(JobDir(Path(job)).events)

    def slots(self, job: str) -> int:
        """The number of slots of the job on this machine."""
        return hosts.read(JobDir(Path(job)).hosts).get(LOCAL_HOST, 0)

    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change the number of slots of the job on this machine."""
        config = self.config(job)
        _require_running(job, "scaled", " A new job gets its ranks by launch.np.")
        kind = config.launch.kind
        if not target.find(kind).is_elastic:
            raise ConfigError(
                "A static ring cannot change.",
                received=f"launch.kind={kind}",
                hint="Start the job with launch=local to scale it.",
            )
        before = hosts.read(JobDir(Path(job)).hosts)
        elsewhere = sum(before.values()) - before.get(LOCAL_HOST, 0)
        total = -1 if num_ranks < 0 else num_ranks + elsewhere
        received = f"{num_ranks} on this machine, {elsewhere} on other hosts"
        check_change(config, total, received=received)
        if not is_dry_run:
            hosts.write(JobDir(Path(job)).hosts, {**before, LOCAL_HOST: num_ranks})
        return before.get(LOCAL_HOST, 0)

    def stop(self, job: str, *, is_dry_run: bool = False) -> None:
        """Request the stop by a file in the directory, for the launcher; no signal is sent."""
        job_dir, config = JobDir(Path(job)), self.config(job)
        _require_running(job, "stopped")
        self.warn_of_stop(job, config, saves=target.find(config.launch.kind).is_elastic)
        if not is_dry_run:
            with job_dir.writing():
                job_dir.stop_request.touch()

    def stop_seconds(self, job: str) -> float:
        """How long the launcher waits for its workers, plus a margin."""
        return STOP_SECONDS + 10.0

    def resume(
        self, job: str, *, is_dry_run: bool = False, on_events: OnEvents | None = None
    ) -> JobResult | None:
        """Run the job here, from its newest checkpoint; returns when it has ended."""
        config = replace(self.config(job), job_dir=os.path.abspath(job), resume="auto")
        state = self.status(job).state
        if JobDir(Path(job)).is_running() or state == "finished":
            now = "has finished" if state == "finished" else "is running"
            raise ConfigError(f"Job {job} {now}, so it cannot be resumed.", received=repr(job))
        target.require_attached(config)
        here = target.find(config.launch.kind)
        plan = here.plan(config)
        if is_dry_run:
            here.describe(plan)
            return None
        result: JobResult = here.launch(plan, on_events=on_events)
        return result

    def delete(self, job: str, *, is_dry_run: bool = False) -> Sequence[str]:
        """Remove the directory, if it is marked as a job's and no process works in it."""
        job_dir = JobDir(Path(os.path.abspath(job)))
        if job_dir.events.exists() and not any(
            recorded.source == "launcher" for recorded in Tail(job_dir.events).new_events()
        ):
            raise ConfigError(
                "edl did not launch this job, so it is not known whether it still runs.",
                received=repr(job),
                hint="Remove the directory by hand once the job has ended.",
            )
        return [str(path) for path in job_dir.remove(is_dry_run=is_dry_run)]

    def _row(self, job: str) -> JobRow:
        try:
            progress = self.status(job).progress
            num_wanted = sum(hosts.read(JobDir(Path(job)).hosts).values())
            first = next(Tail(JobDir(Path(job)).events).new_events(), None)
            created = first.time if first else os.stat(job).st_mtime
        except (ConfigError, OSError) as error:
            progress, num_wanted = replace(summarize(()), message=str(error)), 0
            created = time.time()
        return JobRow(
            job=job,
            place="",
            state=progress.state,
            message=progress.message,
            num_ready=0 if progress.is_over else progress.size,
            num_wanted=num_wanted,
            step=progress.step,
            total_steps=progress.total_steps,
            created=created,
        )


@dataclass(frozen=True)
class _Known:
    """What the events of a job tell until now."""

    state: JobState = field(default_factory=JobState)
    is_ours: bool = False
    """Whether one of our launchers has written some of the events."""
    last_time: float | None = None
    """When the last event was written."""


class _Summary:
    """Summarizes the events of a job; a further look reads only those that are new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._tail, self._known = Tail(path), _Known()

    def newest(self) -> _Known:
        """Read the new events, or all of them if the directory has a new job."""
        with self._lock:
            # If the events cannot be read to the end, the next look begins again.
            tail, self._tail = self._tail, Tail(self._path)
            if tail.begins_again():
                self._known = _Known()
            self._known = self._read_on(tail, self._known)
            self._tail = tail
            return self._known

    @staticmethod
    def _read_on(tail: Tail, known: _Known) -> _Known:
        is_ours, last_time = known.is_ours, known.last_time

        def noted() -> Iterator[Recorded]:
            nonlocal is_ours, last_time
            for recorded in tail.new_events():
                is_ours = is_ours or recorded.source == "launcher"
                if not isinstance(recorded.event, AccountEvent):  # A rank that hangs writes them.
                    last_time = max(last_time or 0.0, recorded.time)
                yield recorded

        state = summarize(noted(), known.state)
        return _Known(state, is_ours, last_time)


def folder_of(path: str, elsewhere: "Mapping[str, ListJobs] | None" = None) -> "Folder | None":
    """The jobs below a directory that is not a job's; None where that cannot be meant.

    A directory without jobs may have the name of a job in a cluster, unless it is a path, and a job
    may start in it later.

    Args:
        path: The directory.
        elsewhere: Lists jobs that are shown beside them, by the kind of place.
    """
    if not os.path.isdir(path) or is_ours(path):
        return None
    if path not in (os.curdir, os.pardir) and not any(_jobs_below(path)):
        is_name = os.path.basename(path) == path
        is_empty = not any(Path(path).glob("*"))
        if is_name or is_empty or os.path.normpath(path).endswith(".job"):
            return None
    from edl_horovod.displays.page.folder import Folder

    return Folder(
        os.path.abspath(path),
        # The folder itself is not listed if it becomes a job's.
        find=lambda: sorted({os.path.relpath(job, path) for job in _jobs_below(path)} - {"."}),
        open_source=lambda job: DirectorySource(JobDir(Path(path) / job)),
        elsewhere=elsewhere,
    )


def _require_running(job: str, change: str, hint: str = "") -> None:
    if not JobDir(Path(job)).is_running():
        raise ConfigError(
            f"The job is not running, so it cannot be {change}.",
            received=repr(job),
            hint=f"See edl status {job}.{hint}",
        )


def is_ours(job: str) -> bool:
    """Whether a directory has the marker, the settings or the events of a job or of a result."""
    job_dir = JobDir(Path(job))
    return any(path.exists() for path in (job_dir.marker, job_dir.config, job_dir.events))


def directory_of(job: str) -> JobDir:
    """The directory, unless it is the result of a job, which may contain settings as well."""
    contents = marker.read(Path(job) / marker.NAME)
    if contents is not None and contents["kind"] != KIND:
        raise ConfigError(
            f"{job} is not the directory of a job: it holds {_described(contents['kind'])}.",
            received=repr(job),
            hint=f"The directory of the job that made it is {contents.get('job') or f'{job}.job'}, "
            "unless it was removed.",
        )
    return JobDir(Path(job))


def _described(kind: str) -> str:
    return kind if kind.endswith("s") else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _jobs_below(folder: str) -> Iterator[str]:
    """Yield the directories of jobs below a folder; jobs are not nested."""
    if not os.path.isdir(folder):
        raise ConfigError(
            "There is no such folder.", received=repr(folder), hint="Give folders that hold jobs."
        )
    for path, folders, _ in os.walk(folder):
        with contextlib.suppress(PermissionError):
            if marker.kind_of(Path(path)) == KIND:
                yield path
                folders.clear()
        depth = len(Path(path).relative_to(folder).parts)
        folders[:] = [name for name in folders if depth < LIST_DEPTH and not name.startswith(".")]


def read_logs(
    folder: Path, *, only: str, tail: int | None, is_over: Callable[[], bool] | None
) -> Iterator[LogLine]:
    """Yield the lines of all logs, file by file, or as they are written.

    Args:
        folder: The folder of the job's logs.
        only: A process, by the name of its log or as `host:slot`; empty for all.
        tail: Number of last lines of each log; None for all.
        is_over: Whether the job has ended, so that the logs are complete; None to not wait.

    Raises:
        ConfigError: There is no such log.
    """
    name = f"worker-{only.rpartition(':')[2]}" if ":" in only else only
    logs = sorted(path.stem for path in folder.glob("*.log"))
    if name and name not in logs:
        raise ConfigError(
            "The job has no log of that process.",
            received=repr(only),
            hint=f"Its logs are {', '.join(logs)}.",
        )
    return _lines(folder, f"{name or '*'}.log", tail, is_over)


def _lines(
    folder: Path, pattern: str, tail: int | None, is_over: Callable[[], bool] | None
) -> Iterator[LogLine]:
    offsets: dict[Path, int] = {}
    while True:
        is_last = is_over is None or is_over()
        for path in sorted(folder.glob(pattern), key=lambda path: (path.stem != "launcher", path)):
            is_new = path not in offsets
            with path.open("rb") as stream:
                stream.seek(offsets.get(path, 0))
                text = stream.read()
            if not is_last:  # Leave an incomplete last line for the next time.
                text = text[: text.rfind(b"\n") + 1]
            offsets[path] = offsets.get(path, 0) + len(text)
            lines = text.decode(errors="replace").splitlines()
            if is_new and tail is not None:
                lines = lines[-tail:] if tail else []
            yield from (LogLine(path.stem, line) for line in lines)
        if is_last:
            return
        time.sleep(LOOK_SECONDS)
