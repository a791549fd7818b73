"""Which pods are hosts."""

from dataclasses import dataclass, field

import pytest

from edl_horovod.cluster.pod.discovery import WorkerPod, hosts_of, pod_of
from edl_horovod.job.hosts import parse, text_of

READY = {"type": "Ready", "status": "True"}


def manifest(*, meta: dict | None = None, spec: dict | None = None, **status) -> dict:
    return {
        "metadata": {"name": "job-worker-0", "namespace": "team", "uid": "u-1", **(meta or {})},
        "spec": spec or {},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "conditions": [READY], **status},
    }


@dataclass(frozen=True)
class Case:
    name: str
    is_host: bool
    meta: dict = field(default_factory=dict)
    status: dict = field(default_factory=dict)


def condition(kind: str, status: str) -> dict:
    return {"conditions": [{"type": kind, "status": status}]}


CASES = [
    Case("ready", True),
    Case("not ready", False, status=condition("Ready", "False")),
    Case("readiness unknown", False, status=condition("Ready", "Unknown")),
    Case("no conditions yet", False, status={"conditions": None}),
    Case("only scheduled", False, status=condition("PodScheduled", "True")),
    Case("terminating", False, meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    Case("no address", False, status={"podIP": ""}),
    Case("pending", False, status={"phase": "Pending"}),
    Case("failed", False, status={"phase": "Failed"}),
    Case("succeeded", False, status={"phase": "Succeeded"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_only_a_ready_staying_pod_with_an_address_is_a_host(case):
    pod = pod_of(manifest(meta=case.meta, **case.status))

    assert hosts_of([pod], 2) == ({"job-worker-0.u-1": 2} if case.is_host else {})


def test_a_pod_without_status_is_no_host():
    assert hosts_of([pod_of({"metadata": {"name": "a", "uid": "u"}})], 1) == {}


def test_a_pod_that_has_the_name_of_an_earlier_one_is_another_host():
    first, second = (pod_of(manifest(meta={"uid": uid})) for uid in ("u-1", "u-2"))

    assert hosts_of([first], 1) != hosts_of([second], 1)


def test_for_ssh_a_host_is_its_address_which_the_next_pod_of_that_name_has_not():
    pod = pod_of(manifest(spec={"hostname": "job-worker-0", "subdomain": "job"}))

    assert hosts_of([pod], 1, names="address") == {"10.0.0.7": 1}


def test_hosts_are_in_the_order_of_their_numbers():
    pods = [WorkerPod(f"job-worker-{n}", f"u{n}", "10.0.0.1", True) for n in (10, 2, 0, 11, 1)]

    assert [name.partition(".")[0] for name in hosts_of(pods, 1)] == [
        f"job-worker-{n}" for n in (0, 1, 2, 10, 11)
    ]


def test_the_coordinator_reads_what_discovery_writes():
    hosts = hosts_of([pod_of(manifest())], 3)

    assert parse(f"# Not current since then.\n{text_of(hosts)}") == hosts
