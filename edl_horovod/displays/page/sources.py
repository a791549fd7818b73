"""Where a page's looks at a job come from: its directory on this machine, or its cluster."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from edl_horovod.displays.page.look import History, Look
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
    """A job that can be looked at, one look at a time."""

    name: str
    """What the page calls the job."""

    def look(self) -> Look:
        """The job as it is now; what goes wrong stands in the look."""


class DirectorySource:
    """A job by its directory."""

    def __init__(self, job_dir: JobDir) -> None:
        """Read nothing yet; the directory need not be there."""
        self.name = str(job_dir)
        self._job_dir = job_dir
        self._path = job_dir.events
        self._beginning = b""
        self._tail = Tail(self._path)
        self._history = History()

    def look(self) -> Look:
        """The job as it is now."""
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
            return Look(time=time.time(), trouble=str(error), http_status=NOT_FOUND)
        except OSError as error:
            trouble = f"The job's directory cannot be read: {error}"
            return Look(time=time.time(), trouble=trouble, http_status=UNAVAILABLE)
        return _look(history, state)

    def _read(self) -> None:
        """Take what was added; all of it where a new job has begun in the directory."""
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
    """A job in a cluster, by its name; what was last seen stays while the API server is away."""

    def __init__(
        self,
        name: str,
        view: Callable[[], "JobView"],
        events: Callable[[], Iterable[Recorded]],
    ) -> None:
        """Ask nothing yet: later what the cluster has of the job, and its own events."""
        self.name = name
        self._view, self._events = view, events
        self._last = Look(time=time.time())

    def look(self) -> Look:
        """The job as it is now."""
        try:
            job = self._view()
            state = self._last.state or JobState()
            self._last = replace(self._last, time=time.time(), state=state, job=job)
            self._last = _seen(self._events(), job)
        except ObjectNotFound as error:
            self._last = Look(time=time.time(), trouble=str(error), http_status=NOT_FOUND)
        except ClusterError as error:
            return replace(self._last, trouble=str(error), http_status=UNAVAILABLE)
        return self._last


def _seen(events: Iterable[Recorded], job: "JobView") -> Look:
    history = History()
    for recorded in events:
        history.add(recorded)
    look = _look(history, history.state)
    # Its last launcher may have ended without a word.
    is_over = job.state in ("finished", "failed", "suspended")
    return replace(look, job=job, ended=history.last_time if is_over else look.ended)


def _look(history: History, state: JobState) -> Look:
    return Look(
        time=time.time(),
        state=state,
        loss=history.loss.points,
        ring=history.ring.points,
        ended=history.last_time if state.is_over else None,
        notable=tuple(history.notable),
    )
