"""What a job's pods wrote, one after the other or, where it is followed, as it comes."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from edl_horovod.cluster import labels
from edl_horovod.cluster.status import pod_view
from edl_horovod.errors import ClusterError, ObjectNotFound

__all__ = ["JobPods", "read_logs"]

LOOK_SECONDS = 2.0
"""Between two looks for pods that are new while their logs are followed."""
_UNREADABLE = ("pending",)


class JobPods(Protocol):
    """The pods of one job."""

    job: str
    """Name of the job."""

    def now(self) -> list[dict[str, Any]]:
        """The pods as the API server has them."""

    def log_lines(
        self, pod: str, *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """What a pod wrote."""

    def is_over(self) -> bool:
        """Whether no more pods come."""


def read_logs(
    pods: "JobPods", *, pod: str = "", follow: bool = False, tail: int | None = None
) -> Iterator[tuple[str, str]]:
    """What the pods of a job wrote: the name of a pod and a line.

    Args:
        pods: The job's pods, as they are at the moment.
        pod: Only this one; empty takes all.
        follow: Go on until the job, or that pod, has ended; pods that come later are taken in.
        tail: Only so many of the last lines of each.
    """
    if not follow:
        for found in _readable(pods, pod):
            for line in pods.log_lines(found, tail=tail):
                yield found, line
        return
    yield from _Followed(pods, pod, tail).lines()


def _readable(pods: "JobPods", only: str) -> list[str]:
    """The pods whose containers have begun, the launcher first."""
    views = [pod_view(pod) for pod in pods.now()]
    if only and only not in [view.name for view in views]:
        raise ObjectNotFound(f"Job {pods.job} has no pod {only}. See edl status {pods.job}.")
    views.sort(key=lambda view: (view.role == labels.WORKER, view.name))
    return [
        view.name for view in views if view.state not in _UNREADABLE and only in ("", view.name)
    ]


class _Followed:
    """One thread for each pod, as the answers of the API server block."""

    def __init__(self, pods: "JobPods", only: str, tail: int | None) -> None:
        self._pods, self._only, self._tail = pods, only, tail
        self._lines: queue.Queue[tuple[str, str] | None] = queue.Queue()
        self._threads: dict[str, threading.Thread] = {}

    def lines(self) -> Iterator[tuple[str, str]]:
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
        for pod in _readable(self._pods, self._only):
            thread = self._threads.get(pod)
            if thread is None:
                self._threads[pod] = thread = threading.Thread(
                    target=self._follow, args=(pod,), name=f"log of {pod}", daemon=True
                )
                thread.start()

    def _follow(self, pod: str) -> None:
        try:
            for text in self._pods.log_lines(pod, follow=True, tail=self._tail):
                self._lines.put((pod, text))
        except ClusterError as error:
            self._lines.put((pod, f"(its log breaks off: {error})"))

    def _is_over(self) -> bool:
        return bool(self._only) or self._pods.is_over()
