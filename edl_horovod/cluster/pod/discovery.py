"""Host discovery: `python -m edl_horovod.cluster.pod.discovery` watches a job's worker pods.

It keeps a hosts file current, by one list and then a watch. All that it needs is to list and watch
pods in one namespace. Where the API server does not answer, or refuses, the file stays as it was,
with a comment that says since when and why; ranks that train need no API server.
"""

import argparse
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from edl_horovod import errors
from edl_horovod.cluster.client import Cluster, WatchEvent
from edl_horovod.cluster.objects import WORKER, pods_selector
from edl_horovod.cluster.refusals import Expired
from edl_horovod.cluster.styles import Names
from edl_horovod.files.whole_file import write_text
from edl_horovod.job import log as logs
from edl_horovod.job.events import DiscoveryEvent, EventLog
from edl_horovod.job.hosts import text_of
from edl_horovod.job.lifeline import end_with_parent

# Run as a program, the module is called __main__.
log = logging.getLogger("edl_horovod.cluster.pod.discovery")

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0
SETTLED_SECONDS = 5.0
"""After a watch of this length the server is not refusing watches, so retries start over."""
WRITE_SECONDS = 0.05
"""Least time between two writes: thousands of pods may become ready at once."""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """The facts about a worker pod that host discovery uses."""

    name: str
    uid: str
    address: str
    """Its IP address; empty if it does not have one yet."""
    is_usable: bool
    """Whether it is ready, which means warm, and not terminating."""
    has_failed: bool = False
    """Whether it has failed for good, for instance by an eviction, and still exists."""


def pod_of(manifest: dict[str, Any]) -> WorkerPod:
    """Extract the facts from a pod's manifest."""
    meta, status = manifest["metadata"], manifest.get("status") or {}
    conditions = status.get("conditions") or ()
    is_ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    address = status.get("podIP") or ""
    phase = "" if "deletionTimestamp" in meta else status.get("phase")
    is_usable = is_ready and phase == "Running" and bool(address)
    return WorkerPod(meta["name"], meta["uid"], address, is_usable, has_failed=phase == "Failed")


def hosts_of(pods: Iterable[WorkerPod], slots: int, *, names: Names = "uid") -> dict[str, int]:
    """Slots by host name for the pods that can have ranks; `worker-2` before `worker-10`."""
    usable = sorted((pod for pod in pods if pod.is_usable), key=lambda p: (len(p.name), p.name))
    return {f"{pod.name}.{pod.uid}" if names == "uid" else pod.address: slots for pod in usable}


class Discovery:
    """Keeps one job's hosts file current."""

    def __init__(
        self, cluster: Cluster, settings: argparse.Namespace, events: EventLog | None = None
    ) -> None:
        """Prepare; `run` does the work, and also reports when the API server is away or back.

        Args:
            cluster: The namespace of the job.
            settings: What `main` parsed: the job and the hosts file.
            events: Receives what is reported.
        """
        self._cluster = cluster
        self._settings = settings
        self._events = events
        self._selector = pods_selector(settings.job, WORKER)
        self._version = ""
        self._pods: dict[str, WorkerPod] | None = None
        """By UID; None until the first list."""
        self._failed: dict[str, WorkerPod] = {}
        """Those that have failed for good and were not removed yet, by UID."""
        self._stale_since: float | None = None
        self._stale_because = ""
        self._heard_at = time.time()
        self._opened_at: float | None = None
        """When the current watch was opened; None if it was not."""
        self._num_retries = 0
        """Attempts in a row that opened no watch, or one that ended soon without a change."""
        self._changed = threading.Event()

    def run(self) -> None:
        """Watch until the process ends."""
        threading.Thread(target=self._write_changes, name="hosts file", daemon=True).start()
        while True:
            self._opened_at = None
            had_version = bool(self._version)
            try:
                self._follow()
            except Expired as e:
                log.info("the pods are listed again: %s", e)
                self._version = ""
                if had_version:
                    # The changes since that version are unknown, so list the pods without a delay.
                    # Only if the version of a new list has expired, too, does the next list wait.
                    continue
            except errors.ClusterError as e:
                # A watch may break at any time; the file is stale only if none could be opened.
                if self._opened_at is None:
                    self._note_stale(e)
                log.debug("%s", e)
            opened_at = self._opened_at
            if opened_at is not None and time.monotonic() - opened_at >= SETTLED_SECONDS:
                self._num_retries = 0
            # A random delay spreads the requests of all jobs that the same outage hits.
            time.sleep(self._wait_seconds() * random.uniform(0.5, 1.0))
            self._num_retries += 1

    def _wait_seconds(self) -> float:
        if self._num_retries == 0:
            return 0.0
        return min(FIRST_WAIT_SECONDS * 2.0 ** min(self._num_retries - 1, 10), LONGEST_WAIT_SECONDS)

    def _follow(self) -> None:
        # That a watch opens proves nothing: after a restart, the server answers first and says only
        # then that it no longer knows the version.
        if not self._version or self._stale_since is not None:
            self._list()
        self._replace_failed()
        watch = self._cluster.watch("Pod", self._version, labels=self._selector)
        self._opened_at = time.monotonic()
        for event in watch:
            self._heard_at = time.time()
            self._version = event.version
            if event.kind != "BOOKMARK":
                self._num_retries = 0
                self._apply(event)
            self._replace_failed()

    def _list(self) -> None:
        pods: dict[str, WorkerPod] = {}
        version = ""
        for page in self._cluster.pages("Pod", labels=self._selector):
            pods.update((pod.uid, pod) for pod in map(pod_of, page.items))
            version = page.version
        self._pods, self._version = pods, version
        self._failed = {pod.uid: pod for pod in pods.values() if pod.has_failed}
        self._note_current()
        self._changed.set()

    def _apply(self, event: WatchEvent) -> None:
        assert self._pods is not None
        pod = pod_of(event.object)
        if event.kind == "DELETED":
            before, after = self._pods.pop(pod.uid, None), None
        else:
            before, after = self._pods.get(pod.uid), pod
            self._pods[pod.uid] = pod
        if _is_host(before) != _is_host(after):
            log.debug("pod %s: %s", pod.name, "host" if _is_host(after) else "no host")
        if before != after:
            self._changed.set()
        if pod.has_failed and after is not None:
            self._failed[pod.uid] = pod

    def _replace_failed(self) -> None:
        """Remove pods that have failed for good: only then does mpi-operator create other ones.

        A pod whose container fails is restarted in place; one that was evicted stays as it is,
        see https://github.com/kubeflow/mpi-operator/issues/647. What the server fails to remove is
        tried again at the next event, or when the watch is opened again, which is each minute.
        """
        if self._settings.replace_failed:
            for pod in list(self._failed.values()):
                self._replace(pod)

    def _replace(self, pod: WorkerPod) -> None:
        message = f"worker pod {pod.name} has failed for good; it is removed, another one comes"
        try:
            self._cluster.delete("Pod", pod.name, uid=pod.uid)
        except (errors.ObjectNotFound, errors.ObjectConflict):
            self._failed.pop(pod.uid, None)
            return  # It has been removed already.
        except errors.ClusterForbidden as e:
            message = f"worker pod {pod.name} has failed for good and cannot be replaced: {e}"
        except errors.ClusterError as e:
            log.debug("worker pod %s cannot be removed now: %s", pod.name, e)
            return
        self._failed.pop(pod.uid, None)
        log.warning("%s", message)
        self._tell("replaced", message)

    # -- an API server that cannot be reached

    def _note_stale(self, error: errors.ClusterError) -> None:
        because = " ".join(str(error).split())  # A comment of the file is one line.
        if because != self._stale_because:
            self._stale_because = because
            self._changed.set()
        if self._stale_since is None:
            self._stale_since = self._heard_at
            log.warning("host discovery is not current: %s", error)
            self._tell("stale", f"host discovery is not current: {error}")

    def _note_current(self) -> None:
        self._heard_at = time.time()
        if self._stale_since is not None:
            seconds = self._heard_at - self._stale_since
            message = f"host discovery is current again after {seconds:.0f} s"
            self._stale_since, self._stale_because = None, ""
            log.info("%s", message)
            self._tell("current", message)

    def _tell(self, state: str, message: str) -> None:
        if self._events is not None:
            self._events.write(DiscoveryEvent(state=state, message=message))
        self._changed.set()

    # -- the file

    def _write_changes(self) -> None:
        written: str | None = None
        while True:
            self._changed.wait()
            self._changed.clear()
            text = self._text()
            if text is not None and text != written:
                try:
                    write_text(self._settings.output, text)
                    written = text
                except OSError as e:
                    log.error("%s cannot be written: %s", self._settings.output, e)
                    time.sleep(1.0)
                    self._changed.set()
            time.sleep(WRITE_SECONDS)

    def _text(self) -> str | None:
        if self._pods is None:
            return None  # The file of an earlier run of this program is still the best information.
        # Copied atomically, because another thread changes the original.
        pods = list(self._pods.values())
        hosts = hosts_of(pods, self._settings.slots, names=self._settings.names)
        since = self._stale_since
        if since is None:
            return text_of(hosts)
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
        return f"# Not current since {at}: {self._stale_because}\n{text_of(hosts)}"


def _is_host(pod: WorkerPod | None) -> bool:
    return pod is not None and pod.is_usable


def main() -> int:
    """Run one job's host discovery; returns the process' exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--job", required=True, help="name of the MPIJob")
    parser.add_argument("--slots", type=int, required=True, help="ranks in each worker pod")
    parser.add_argument("--output", type=Path, required=True, help="the hosts file")
    parser.add_argument(
        "--names", choices=get_args(Names), default="uid", help="address: for ssh and horovodrun"
    )
    parser.add_argument(
        "--replace-failed", action="store_true", help="remove pods that failed for good"
    )
    parser.add_argument("--events", type=Path, help="the job's events.jsonl")
    args = parser.parse_args()
    logs.setup("discovery")
    end_with_parent()
    _end_at_sigterm()
    try:
        with _events(args.events) as events, Cluster.connect(namespace=args.namespace) as cluster:
            Discovery(cluster, args, events).run()
    except errors.EdlError as e:
        log.error("%s", e)
        return e.exit_code
    except KeyboardInterrupt:
        pass
    return 0


def _end_at_sigterm() -> None:
    """At SIGTERM, end with exit code 0 at once, whatever the main thread waits for.

    A handler in Python runs in the main thread, and only once that one is awake: a signal that
    comes just before a silent watch is read, or to another thread, would wait for the watch's end.
    """
    wake_up, tell = os.pipe()
    os.set_blocking(tell, False)

    def wait() -> None:
        os.read(wake_up, 1)
        os._exit(0)

    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(tell)
    threading.Thread(target=wait, name="signals", daemon=True).start()


def _events(path: Path | None) -> contextlib.AbstractContextManager[EventLog | None]:
    return contextlib.nullcontext() if path is None else EventLog(path, "discovery")


if __name__ == "__main__":
    sys.exit(main())
