"""Host discovery with thousands of pods, and the coordinator with a thousand connected workers."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.elastic.forming import coordinator
from benchmarks.report import Line
from benchmarks.run import OURS, Run, python_command, wait_for
from benchmarks.side import Work
from benchmarks.stamps import status_bytes
from edl_horovod.cluster.objects import WORKER, pod_labels
from edl_horovod.config.schema import ElasticConfig
from edl_horovod.job import hosts
from edl_horovod.supervisor.processes import Child
from tests.kube.apiserver.server import ADMIN_TOKEN, ApiServer
from tests.kube.conftest import write_kubeconfig

TARGET_SECONDS = 1.0
TARGET_MEBIBYTES = 200.0
POLL_SECONDS = 0.001
LONGEST_SECONDS = 120.0
SEED = 11
EVENTS = {
    "lost": "a worker is lost",
    "back": "a warm worker comes back",
    "less": "a host is withdrawn",
    "more": "a host is added, its worker is warm",
}
POLLED = "looks for a changed hosts file every 0.1 s"


class _Cluster:
    """Worker pods in an API server, and the hosts file that follows them."""

    def __init__(self, server: ApiServer, num_pods: int, output: Path) -> None:
        self._server = server
        self._output = output
        self.uids = [self._server.do(lambda n=n: self._add(n)) for n in range(num_pods)]

    def set_ready(self, numbers: Sequence[int], is_ready: bool) -> None:
        """Report pods as the kubelets do, all at once."""

        def change() -> None:
            for number in numbers:
                item = self._server.store.get("pods", "default", _name(number))
                changed = {**item, "status": _status(is_ready)}
                self._server.store.update("pods", changed, is_dry_run=False)

        self._server.do(change)

    def hosts(self) -> dict[str, int] | None:
        """What the file says now."""
        return hosts.read(self._output) if self._output.exists() else None

    def seconds_to_ready(
        self, numbers: Sequence[int], is_ready: bool, is_fresh: Callable[[dict[str, int]], bool]
    ) -> float:
        """From a change of pods until the file shows it."""
        began, seen = time.monotonic(), -1
        self.set_ready(numbers, is_ready)
        while time.monotonic() - began < LONGEST_SECONDS:
            stamp = self._output.stat().st_ino if self._output.exists() else -1
            if stamp != seen:
                seen = stamp
                if is_fresh(self.hosts() or {}):
                    return time.monotonic() - began
            time.sleep(POLL_SECONDS)
        raise TimeoutError("the hosts file does not show the change")

    def _add(self, number: int) -> str:
        store = self._server.store
        pod = store.create("pods", "default", _manifest(number), is_dry_run=False)
        store.update("pods", {**pod, "status": _status(True)}, is_dry_run=False)
        return str(pod["metadata"]["uid"])


def measure_discovery(run: Run) -> list[Line]:
    """Start discovery on a namespace full of pods, and change some."""
    place, num_pods = run.place("discovery"), run.amount(5000, 500)
    output = place / "hosts"
    with ApiServer() as server:
        kubeconfig = write_kubeconfig(place / "config", server.url, {"token": ADMIN_TOKEN})
        cluster = _Cluster(server, num_pods, output)
        options = ("--namespace", "default", "--job", "job", "--slots", 1, "--output", output)
        argv = python_command("edl_horovod.cluster.pod.discovery", *options)
        began = time.monotonic()
        with run.process(place, argv, environment={"KUBECONFIG": str(kubeconfig)}) as child:
            wait_for(cluster.hosts, "the first hosts file", child)
            first = time.monotonic() - began
            return _lines(run, cluster, server, child, first)


def _lines(
    run: Run, cluster: _Cluster, server: ApiServer, child: Child, first: float
) -> list[Line]:
    size, quiet_seconds = len(cluster.uids), run.amount(60.0, 5.0)
    watched_since = time.monotonic()
    singles = _single_changes(cluster, run.amount(10, 3))
    burst_cpu, bursts = _cpu_seconds(child), []
    for is_ready in (False, True) * 3:
        is_shown = partial(lambda number, now: len(now) == number, size if is_ready else 0)
        bursts.append(cluster.seconds_to_ready(range(size), is_ready, is_shown))
    burst_cpu = (_cpu_seconds(child) - burst_cpu) / len(bursts)
    cpu = _cpu_seconds(child)
    time.sleep(quiet_seconds)
    quiet_percent = 100 * (_cpu_seconds(child) - cpu) / quiet_seconds
    minutes = (time.monotonic() - watched_since) / 60
    verbs = Counter(request.verb for request in server.seen)
    pages = -(-size // 500)
    seconds, mebibytes = (TARGET_SECONDS, TARGET_MEBIBYTES) if size >= 5000 else (None, None)
    peak = status_bytes("VmHWM", f"/proc/{child.pid}/status") / 2**20
    num_lists = float(verbs["list"] - pages)
    cores = f"{burst_cpu:.2f} s of CPU each; the API server is on the same cores"
    requests = (
        f"in {minutes:.1f} min with all these changes: {verbs['watch']} watch, and "
        f"{verbs['list']} of the first list, {pages} pages"
    )

    def line(event: str, values: Sequence[float], **options: Any) -> Line:
        return Line(f"{size:,} pods: {event}", OURS, values, **options)

    return [
        line("a pod turns ready or unready, the hosts file shows it", singles, most=seconds),
        line("all turn at once, the hosts file shows it", bursts, detail=cores),
        line("from the start of the program to the first hosts file", (first,)),
        line("most memory of the process", (peak,), unit="M", most=mebibytes),
        line(
            "list requests while the watch lives", (num_lists,), unit="n", most=0, detail=requests
        ),
        line("CPU of the process while nothing changes", (quiet_percent,), unit="%"),
    ]


def _single_changes(cluster: _Cluster, num_events: int) -> list[float]:
    times, dice = [], random.Random(SEED)
    for _ in range(num_events):
        number = dice.randrange(len(cluster.uids))
        host = f"{_name(number)}.{cluster.uids[number]}"
        for is_ready in (False, True):
            is_shown = partial(lambda host, ready, now: (host in now) == ready, host, is_ready)
            times.append(cluster.seconds_to_ready([number], is_ready, is_shown))
            time.sleep(dice.uniform(0.05, 0.15))
    return times


def _cpu_seconds(child: Child) -> float:
    times = psutil.Process(child.pid).cpu_times()
    return times.user + times.system


def measure_coordinator(run: Run) -> list[Line]:
    """Time all kinds of changes under one coordinator."""
    size, num_events, place = run.amount(1000, 100), run.amount(10, 3), run.place("connected")
    elastic = ElasticConfig(min_np=1, wait_seconds=LONGEST_SECONDS)
    with coordinator(run, place, size, elastic, {}) as child:
        options = {"job_dir": place / "job", "num_workers": size, "num_events": num_events}
        options |= {"seconds": num_events * 10 + 2 * LONGEST_SECONDS, "longest": LONGEST_SECONDS}
        times = run.side("ours.simulated.change", Work(data=place), **options)
        seconds = _cpu_seconds(child)
        mebibytes = psutil.Process(child.pid).memory_info().rss / 2**20
    target = TARGET_SECONDS if size >= 1000 else None
    lines = []
    for kind, title in EVENTS.items():
        event = f"{title}: the last of {size:,} workers has its place"
        detail = POLLED if kind in ("less", "more") else ""
        lines.append(Line(event, OURS, times[kind], most_median=target, detail=detail))
    first = f"the first {size:,} workers connect and have their places"
    num_changes = sum(len(values) for values in times.values())
    cpu = f"{size:,} workers: the coordinator's CPU for one change"
    detail = f"mean of {num_changes}, its start and its pings between included; "
    detail += f"{mebibytes:.0f} MiB of memory"
    per_change = (seconds / num_changes,)
    lines += [Line(first, OURS, times["start"]), Line(cpu, OURS, per_change, detail=detail)]
    return lines


def _name(number: int) -> str:
    return f"job-worker-{number}"


def _status(is_ready: bool) -> dict[str, Any]:
    now = "2026-01-01T00:00:00Z"
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    condition = {"status": str(is_ready), "lastTransitionTime": now}
    image = f"registry.example.org/team/mnist@sha256:{'0' * 64}"
    container = {"name": "worker", "image": image, "ready": is_ready, "restartCount": 0}
    state = {"started": True, "state": {"running": {"startedAt": now}}}
    return {
        **{"phase": "Running", "startTime": now, "hostIP": "10.0.0.1", "podIP": "10.1.2.3"},
        "conditions": [{"type": kind, **condition} for kind in kinds],
        "containerStatuses": [container | state],
    }


def _manifest(number: int) -> dict[str, Any]:
    """About as large as a worker pod is in a real cluster: some 4 KB of JSON."""
    names = [f"EDL_VARIABLE_{index}" for index in range(20)]
    writer = {"operation": "Update", "apiVersion": "v1", "fieldsV1": {f"f:{n}": {} for n in names}}
    container = {
        **{"name": "worker", "image": "registry.example.org/team/mnist:1"},
        "command": ["python", "-m", "edl_horovod.worker"],
        "env": [{"name": name, "value": "some value"} for name in names],
        "resources": {key: {"cpu": "2", "memory": "4Gi"} for key in ("limits", "requests")},
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(6)],
    }
    return {
        "metadata": {
            "name": _name(number),
            "labels": {**pod_labels("job", WORKER), "replica-index": str(number)},
            "managedFields": [{"manager": f"manager-{index}", **writer} for index in range(2)],
        },
        "spec": {
            **{"hostname": _name(number), "subdomain": "job", "restartPolicy": "OnFailure"},
            "nodeName": f"node-{number // 8}",
            "containers": [container],
            "volumes": [{"name": f"volume-{n}", "emptyDir": {}} for n in range(6)],
        },
    }
