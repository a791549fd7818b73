"""What a job's pods wrote, one after the other or, where it is followed, as it comes."""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_horovod.cluster import labels
from edl_horovod.cluster.status import ENDED, pod_view
from edl_horovod.errors import ClusterError, ConfigError, ObjectNotFound

if TYPE_CHECKING:
    from edl_horovod.cluster.jobs import Jobs

__all__ = ["LogLine", "pod_of_rank", "read_logs"]

LOOK_SECONDS = 2.0
"""Between two looks for pods that are new while their logs are followed."""
_UNREADABLE = ("pending",)


@dataclass(frozen=True)
class LogLine:
    """One line that a pod wrote."""

    pod: str
    text: str


def pod_of_rank(jobs: "Jobs", name: str, rank: int) -> str:
    """The worker pod that has a rank in the job's ring now.

    Args:
        jobs: Where the job is.
        name: Of the job.
        rank: In the ring that was formed last.

    Raises:
        ConfigError: The ring has no such rank.
    """
    members = jobs.progress(name).members
    if not 0 <= rank < len(members):
        raise ConfigError(
            f"The ring of job {name} has no rank {rank}. Received: --rank={rank}, and a ring of "
            f"{len(members)}. See edl status {name}."
        )
    return members[rank].partition(".")[0]  # `<pod>.<UID>:<slot>`


def read_logs(
    jobs: "Jobs", name: str, *, pod: str = "", follow: bool = False, tail: int | None = None
) -> Iterator[LogLine]:
    """What the pods of a job wrote.

    Args:
        jobs: Where the job is.
        name: Of the job.
        pod: Only this one; empty takes all.
        follow: Go on until the job, or that pod, has ended; pods that come later are taken in.
        tail: Only so many of the last lines of each.
    """
    if not follow:
        for found in _readable(jobs, name, pod):
            for line in jobs.cluster.log_lines(found, tail=tail):
                yield LogLine(found, line)
        return
    yield from _Followed(jobs, name, pod, tail).lines()


def _readable(jobs: "Jobs", name: str, only: str) -> list[str]:
    """The pods whose containers have begun, the launcher first."""
    views = [pod_view(pod) for pod in jobs.pods(name)]
    if only and only not in [view.name for view in views]:
        raise ObjectNotFound(f"Job {name} has no pod {only}. See edl status {name}.")
    views.sort(key=lambda view: (view.role == labels.WORKER, view.name))
    return [
        view.name for view in views if view.state not in _UNREADABLE and only in ("", view.name)
    ]


class _Followed:
    """One thread for each pod, as the answers of the API server block."""

    def __init__(self, jobs: "Jobs", name: str, only: str, tail: int | None) -> None:
        self._jobs, self._name, self._only, self._tail = jobs, name, only, tail
        self._lines: queue.Queue[LogLine | None] = queue.Queue()
        self._threads: dict[str, threading.Thread] = {}

    def lines(self) -> Iterator[LogLine]:
        """Lines as they come."""
        self._start_new()
        looked = time.monotonic()
        while True:
            try:
                line = self._lines.get(timeout=LOOK_SECONDS / 10)
            except queue.Empty:
                line = None
            if line is not None:
                yield line
                continue
            if time.monotonic() - looked < LOOK_SECONDS:
                continue
            looked = time.monotonic()
            self._start_new()
            is_quiet = not any(thread.is_alive() for thread in self._threads.values())
            if is_quiet and self._lines.empty() and self._is_over():
                return

    def _start_new(self) -> None:
        for pod in _readable(self._jobs, self._name, self._only):
            thread = self._threads.get(pod)
            if thread is None:
                self._threads[pod] = thread = threading.Thread(
                    target=self._follow, args=(pod,), name=f"log of {pod}", daemon=True
                )
                thread.start()

    def _follow(self, pod: str) -> None:
        try:
            for text in self._jobs.cluster.log_lines(pod, follow=True, tail=self._tail):
                self._lines.put(LogLine(pod, text))
        except ClusterError as error:
            self._lines.put(LogLine(pod, f"(its log breaks off: {error})"))

    def _is_over(self) -> bool:
        try:
            return bool(self._only) or self._jobs.status(self._name).state in (*ENDED, "suspended")
        except ObjectNotFound:
            return True
