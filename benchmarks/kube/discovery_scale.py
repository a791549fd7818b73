"""Host discovery with thousands of pods: how fresh, how large, how many requests."""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.elastic.settings import OURS, Run, python
from benchmarks.elastic.table import Line
from benchmarks.kube.settings import Scale
from edl_horovod.cluster.objects import WORKER, pod_labels
from edl_horovod.job import hosts
from edl_horovod.supervisor.processes import Child
from tests.kube.apiserver.server import ADMIN_TOKEN, ApiServer

__all__ = ["measure"]

TARGET_SECONDS = 1.0
TARGET_MEBIBYTES = 200.0
POLL_SECONDS = 0.001
LONGEST_SECONDS = 120.0
SEED = 11


class _Cluster:
    """Worker pods in an API server, and the hosts file that follows them."""

    def __init__(self, server: ApiServer, num_pods: int, output: Path) -> None:
        self._server = server
        self._output = output
        self.uids = [self._server.do(lambda n=n: self._add(n)) for n in range(num_pods)]

    def set_ready(self, numbers: list[int], is_ready: bool) -> None:
        """What the kubelets say, all at once."""

        def change() -> None:
            for number in numbers:
                item = self._server.store.get("pods", "default", _name(number))
                changed = {**item, "status": _status(is_ready)}
                self._server.store.update("pods", changed, is_dry_run=False)

        self._server.do(change)

    def hosts(self) -> dict[str, int] | None:
        """What the file says now."""
        return hosts.read(self._output) if self._output.exists() else None

    def seconds_until(
        self, is_fresh: Callable[[dict[str, int]], bool], change: Callable[[], None]
    ) -> float:
        """From a change until the file shows it."""
        began, seen = time.monotonic(), -1
        change()
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
        made = store.create("pods", "default", _manifest(number), is_dry_run=False)
        store.update("pods", {**made, "status": _status(True)}, is_dry_run=False)
        return str(made["metadata"]["uid"])


def measure(run: Run, scale: Scale) -> list[Line]:
    """Start discovery on a namespace full of pods, and change some.

    Args:
        run: Starts the processes.
        scale: How many of everything.

    Raises:
        SideFailed: Discovery ended.
    """
    place = run.place("discovery")
    kubeconfig, output = place / "config", place / "hosts"
    with ApiServer() as server:
        kubeconfig.write_text(_kubeconfig(server.url))
        cluster = _Cluster(server, scale.num_pods, output)
        command = python(
            "edl_horovod.cluster.pod.discovery",
            "--namespace",
            "default",
            "--job",
            "job",
            "--slots",
            1,
            "--output",
            output,
        )
        began = time.monotonic()
        with run.process(place, command, environment={"KUBECONFIG": str(kubeconfig)}) as child:
            run.wait_for(cluster.hosts, "the first hosts file", child)
            first = time.monotonic() - began
            return _lines(cluster, server, scale, child, first)


def _lines(
    cluster: _Cluster, server: ApiServer, scale: Scale, child: Child, first: float
) -> list[Line]:
    size, watched_since = scale.num_pods, time.monotonic()
    singles = _single_changes(cluster, scale)
    burst_cpu = _cpu_seconds(child)
    bursts = _bursts(cluster, size)
    burst_cpu = (_cpu_seconds(child) - burst_cpu) / len(bursts)
    cpu_before = _cpu_seconds(child)
    time.sleep(scale.quiet_seconds)
    cpu = _cpu_seconds(child) - cpu_before
    minutes = (time.monotonic() - watched_since) / 60
    verbs = Counter(one.verb for one in server.seen)
    pages = -(-size // 500)
    with_target = size >= 5000
    return [
        Line(
            event=f"{size:,} pods: a pod turns ready or unready, the hosts file shows it",
            side=OURS,
            values=tuple(singles),
            most=TARGET_SECONDS if with_target else None,
        ),
        Line(
            event=f"{size:,} pods: all turn at once, the hosts file shows it",
            side=OURS,
            values=tuple(bursts),
            detail=f"{burst_cpu:.2f} s of CPU each; the API server is on the same cores",
        ),
        Line(
            event=f"{size:,} pods: from the start of the program to the first hosts file",
            side=OURS,
            values=(first,),
        ),
        Line(
            event=f"{size:,} pods: most memory of the process",
            side=OURS,
            unit="M",
            values=(_peak_mebibytes(child),),
            most=TARGET_MEBIBYTES if with_target else None,
        ),
        Line(
            event=f"{size:,} pods: list requests while the watch lives",
            side=OURS,
            unit="n",
            values=(float(verbs["list"] - pages),),
            most=0,
            detail=f"in {minutes:.1f} min with all these changes: {verbs['watch']} watch, and "
            f"{verbs['list']} of the first list, {pages} pages",
        ),
        Line(
            event=f"{size:,} pods: CPU of the process while nothing changes",
            side=OURS,
            unit="%",
            values=(100 * cpu / scale.quiet_seconds,),
        ),
    ]


def _bursts(cluster: _Cluster, size: int) -> list[float]:
    found, every = [], list(range(size))
    for is_ready in (False, True) * 3:
        most = size if is_ready else 0
        found.append(
            cluster.seconds_until(
                lambda hosts_now, n=most: len(hosts_now) == n,
                lambda ready=is_ready: cluster.set_ready(every, ready),
            )
        )
    return found


def _single_changes(cluster: _Cluster, scale: Scale) -> list[float]:
    found, dice = [], random.Random(SEED)
    for _ in range(scale.num_events):
        number = dice.randrange(scale.num_pods)
        host = f"{_name(number)}.{cluster.uids[number]}"
        for is_ready in (False, True):
            found.append(
                cluster.seconds_until(
                    lambda hosts_now, ready=is_ready, name=host: (name in hosts_now) == ready,
                    lambda ready=is_ready, n=number: cluster.set_ready([n], ready),
                )
            )
            time.sleep(dice.uniform(0.05, 0.15))
    return found


def _cpu_seconds(child: Child) -> float:
    times = psutil.Process(child.pid).cpu_times()
    return times.user + times.system


def _peak_mebibytes(child: Child) -> float:
    for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("Linux tells the most memory that a process ever had")


def _name(number: int) -> str:
    return f"job-worker-{number}"


def _status(is_ready: bool) -> dict[str, Any]:
    now = "2026-01-01T00:00:00Z"
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": str(is_ready), "lastTransitionTime": now} for kind in kinds
        ],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "startTime": now,
        "qosClass": "Guaranteed",
        "containerStatuses": [
            {
                "name": "worker",
                "image": "registry.example.org/team/mnist:1",
                "imageID": f"registry.example.org/team/mnist@sha256:{'0' * 64}",
                "containerID": f"containerd://{'0' * 64}",
                "ready": is_ready,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
        ],
    }


def _manifest(number: int) -> dict[str, Any]:
    """About as large as a worker pod is in a real cluster: some 4 KB of JSON."""
    names = [f"EDL_VARIABLE_{index}" for index in range(20)]
    resources = {"cpu": "2", "memory": "4Gi"}
    mounts = [{"name": f"volume-{index}", "mountPath": f"/mnt/{index}"} for index in range(6)]
    fields = [
        {
            "manager": f"manager-{index}",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsV1": {f"f:{name}": {} for name in names},
        }
        for index in range(2)
    ]
    return {
        "metadata": {
            "name": _name(number),
            "labels": {**pod_labels("job", WORKER), "replica-index": str(number)},
            "managedFields": fields,
        },
        "spec": {
            "nodeName": f"node-{number // 8}",
            "hostname": _name(number),
            "subdomain": "job",
            "restartPolicy": "OnFailure",
            "containers": [
                {
                    "name": "worker",
                    "image": "registry.example.org/team/mnist:1",
                    "command": ["python", "-m", "edl_horovod.worker"],
                    "env": [{"name": name, "value": "some value"} for name in names],
                    "resources": {"limits": resources, "requests": resources},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": [{"name": mount["name"], "emptyDir": {}} for mount in mounts],
        },
    }


def _kubeconfig(url: str) -> str:
    return f"""\
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "{url}"}}}}]
users: [{{name: me, user: {{token: {ADMIN_TOKEN}}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
"""
