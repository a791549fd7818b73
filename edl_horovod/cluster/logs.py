"""The logs of a job's pods: one after the other, or as they are written."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

from edl_horovod.cluster import objects
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.status import PodView, pod_view
from edl_horovod.errors import ClusterError, ObjectNotFound

LOOK_SECONDS = 2.0
"""Time between two checks for new pods while logs are followed."""


def read_logs(
    cluster: Cluster, job: str, *, only: str, tail: int | None, is_over: Callable[[], bool] | None
) -> Iterator[tuple[str, str]]:
    """Yield the log lines of a job's pods, each with the name of the pod.

    Args:
        cluster: The namespace of the job.
        job: Its name.
        only: Only this pod; empty takes all, those that come later included.
        tail: Only so many of the last lines of each.
        is_over: Whether no more pods come; None takes what is there and does not wait.
    """
    if is_over is not None:
        yield from _followed(cluster, job, only, tail, is_over)
        return
    for pod in _readable(cluster, job, only):
        for line in cluster.log_lines(pod.name, tail=tail):
            yield pod.name, line


def _readable(cluster: Cluster, job: str, only: str) -> list[PodView]:
    """The pods whose containers have started, the launcher first."""
    pods = cluster.find("Pod", labels=objects.pods_selector(job))
    views = [pod_view(pod, now=time.time()) for pod in pods]
    if only and only not in [view.name for view in views]:
        raise ObjectNotFound(f"Job {job} has no pod {only}.", hint=f"See edl status {job}.")
    views.sort(key=lambda view: (view.role == objects.WORKER, view.name))
    return [view for view in views if view.state != "pending" and only in ("", view.name)]


def _followed(
    cluster: Cluster, job: str, only: str, tail: int | None, is_over: Callable[[], bool]
) -> Iterator[tuple[str, str]]:
    """Follow the log of each container in a thread, because the API server's answers block."""
    lines: queue.Queue[tuple[str, str]] = queue.Queue()
    # By the pod's name, when it was made, and how often its container was started again.
    threads: dict[tuple[str, float, int], threading.Thread] = {}

    def follow(pod: str, most: int | None) -> None:
        try:
            for text in cluster.log_lines(pod, follow=True, tail=most):
                lines.put((pod, text))
        except ClusterError as error:
            lines.put((pod, f"(its log breaks off: {error})"))

    def start_new() -> bool:
        """Follow the containers that are new; returns whether any pod may still write."""
        pods = _readable(cluster, job, only)
        for pod in pods:
            container = pod.name, pod.created, pod.restarts
            if container not in threads:
                is_first = pod.name not in (name for name, *_ in threads)
                arguments = pod.name, tail if is_first else None
                threads[container] = threading.Thread(target=follow, args=arguments, daemon=True)
                threads[container].start()
        return any(pod.state not in ("succeeded", "failed") for pod in pods)

    start_new()
    looked = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            yield lines.get(timeout=LOOK_SECONDS / 10)
            continue
        if time.monotonic() - looked < LOOK_SECONDS:
            continue
        looked, may_write = time.monotonic(), True
        with contextlib.suppress(ObjectNotFound):  # The only pod is gone; its namesake may come.
            may_write = start_new()
        is_quiet = not any(thread.is_alive() for thread in threads.values())
        if is_quiet and lines.empty() and ((only and not may_write) or is_over()):
            return
