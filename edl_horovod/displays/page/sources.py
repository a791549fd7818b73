"""The sources of a page's snapshots: a job's directory on this machine, or its cluster."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from edl_horovod.displays.page.snapshot import History, JobSnapshot
from edl_horovod.displays.status import local_state
from edl_horovod.errors import ClusterError, ConfigError, ObjectNotFound
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import Recorded, Tail
from edl_horovod.job.state import JobState

if TYPE_CHECKING:
    from edl_horovod.cluster.status import JobView

__all__ = ["ClusterSource", "DirectorySource", "Source"]

NOT_FOUND, UNAVAILABLE = 404, 503
_BEGINNING_BYTES = 4096


class Source(Protocol):
    """A job of which snapshots can be taken, one at a time."""

    name: str
    """The name of the job on the page."""

    def snapshot(self) -> JobSnapshot:
        """The current state of the job, or the problem that hides it."""


class DirectorySource:
    """A job in a directory of this machine."""

    def __init__(self, job_dir: JobDir) -> None:
        """Open the source without reading; the directory need not exist yet."""
        self.name = str(job_dir)
        self._job_dir = job_dir
        self._path = job_dir.events
        self._beginning = b""
        self._tail = Tail(self._path)
        self._history = History()

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job."""
        try:
            is_running = self._job_dir.is_running()
            self._read()
            history = self._history
            state = local_state(
                self._job_dir,
                history.state,
                is_ours=history.is_ours,
                is_running=is_running,
                last_time=history.last_time,
            )
        except ConfigError as error:
            return JobSnapshot(time=time.time(), problem=str(error), http_status=NOT_FOUND)
        except OSError as error:
            problem = f"The job's directory cannot be read: {error}"
            return JobSnapshot(time=time.time(), problem=problem, http_status=UNAVAILABLE)
        return _snapshot_of(history, state)

    def _read(self) -> None:
        """Read new events; start from the beginning if the directory has a new job."""
        beginning = self._first_line()
        if beginning != self._beginning:
            self._tail, self._history = Tail(self._path), History()
            self._beginning = beginning
        for recorded in self._tail.new_events():
            self._history.add(recorded)

    def _first_line(self) -> bytes:
        try:
            with self._path.open("rb") as stream:
                line = stream.readline(_BEGINNING_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        return line if line.endswith(b"\n") or len(line) == _BEGINNING_BYTES else b""


class ClusterSource:
    """A job in a cluster; the last snapshot stays while the API server is unreachable."""

    def __init__(
        self,
        name: str,
        view: Callable[[], "JobView"],
        events: Callable[[], Iterable[Recorded]],
    ) -> None:
        """Open the source without a request.

        Args:
            name: The name of the job.
            view: Reads the job's state in the cluster.
            events: Reads the job's events.
        """
        self.name = name
        self._view, self._events = view, events
        self._last = JobSnapshot(time=time.time())

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job."""
        try:
            job = self._view()
            state = self._last.state or JobState()
            self._last = replace(self._last, time=time.time(), state=state, job=job)
            self._last = _cluster_snapshot(self._events(), job)
        except ObjectNotFound as error:
            self._last = JobSnapshot(time=time.time(), problem=str(error), http_status=NOT_FOUND)
        except ClusterError as error:
            return replace(self._last, problem=str(error), http_status=UNAVAILABLE)
        return self._last


def _cluster_snapshot(events: Iterable[Recorded], job: "JobView") -> JobSnapshot:
    history = History()
    for recorded in events:
        history.add(recorded)
    snapshot = _snapshot_of(history, history.state)
    # The last launcher may have ended without an event.
    is_over = job.state in ("finished", "failed", "suspended")
    return replace(snapshot, job=job, ended=history.last_time if is_over else snapshot.ended)


def _snapshot_of(history: History, state: JobState) -> JobSnapshot:
    return JobSnapshot(
        time=time.time(),
        state=state,
        loss=history.loss.points,
        ring=history.ring.points,
        ended=history.last_time if state.is_over else None,
        notable=tuple(history.notable),
    )
