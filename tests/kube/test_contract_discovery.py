"""Host discovery as a program, against any API server."""

import functools
import re

import pytest
from kubernetes import client as k8s

from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.objects import LAUNCHER, WORKER, pod_labels
from tests.kube.conftest import WATCHER, allow, pod, rule
from tests.kube.discovering import Program, hosts_in, wait_until
from tests.kube.test_contract_rights import READ_PODS, WATCHER_USER
from tests.waiting import watch


class Pods:
    """The worker pods of a job, and what a kubelet would say of them."""

    def __init__(self, cluster: Cluster, admin: k8s.ApiClient) -> None:
        self._cluster = cluster
        self._core = k8s.CoreV1Api(admin)

    def add(self, number: int, *, job: str = "job", role: str = WORKER) -> str:
        """Make a pod that is ready; returns its host name."""
        name = f"{job}-{role}-{number}"
        uid = self._cluster.create(pod(name, labels=pod_labels(job, role)))["metadata"]["uid"]
        self.set_ready(name, True)
        return f"{name}.{uid}"

    def set_ready(self, name: str, is_ready: bool) -> None:
        ready = {"type": "Ready", "status": str(is_ready)}
        addresses = {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}
        self._set_status(name, {"phase": "Running", **addresses, "conditions": [ready]})

    def evict(self, name: str) -> None:
        message = "The node was low on memory."
        self._set_status(name, {"phase": "Failed", "reason": "Evicted", "message": message})

    def _set_status(self, name: str, status: dict) -> None:
        self._core.patch_namespaced_pod_status(name, self._cluster.namespace, {"status": status})

    def is_there(self, name: str) -> bool:
        pods = self._cluster.find("Pod", fields=f"metadata.name={name}")
        return any("deletionTimestamp" not in pod["metadata"] for pod in pods)

    def delete(self, name: str, grace: int | None = None) -> None:
        self._cluster.delete("Pod", name, grace_seconds=grace)


@pytest.fixture
def pods(cluster, admin):
    allow(cluster, "read-pods", [READ_PODS], subject=WATCHER_USER)
    return Pods(cluster, admin)


@pytest.fixture
def start(backend, namespace, tmp_path):
    """It may get, list and watch the pods of its namespace, and nothing else."""
    kubeconfig = backend.kubeconfig(tmp_path / "watcher", token=WATCHER, namespace=namespace)
    return functools.partial(Program, kubeconfig, namespace, tmp_path)


@pytest.fixture
def program(start, pods):
    with start() as started:
        yield started


@pytest.mark.long
def test_hosts_come_and_go_with_their_pods(program, pods):
    wait_until(lambda: hosts_in(program.output) == {}, program)

    first, second = pods.add(0), pods.add(1)
    wait_until(lambda: hosts_in(program.output) == {first: 2, second: 2}, program)

    pods.set_ready("job-worker-0", False)
    wait_until(lambda: hosts_in(program.output) == {second: 2}, program)

    pods.set_ready("job-worker-0", True)
    wait_until(lambda: hosts_in(program.output) == {first: 2, second: 2}, program)

    pods.delete("job-worker-0")  # It terminates, and is no host long before it is gone.
    wait_until(lambda: hosts_in(program.output) == {second: 2}, program)

    pods.delete("job-worker-0", grace=0)
    third = pods.add(0)
    assert third != first, "a pod that is made anew is another host"
    wait_until(lambda: hosts_in(program.output) == {second: 2, third: 2}, program)

    pods.delete("job-worker-0", grace=0)
    fourth = pods.add(0)
    wait_until(lambda: hosts_in(program.output) == {second: 2, fourth: 2}, program)


def test_pods_of_other_jobs_and_roles_are_none(program, pods):
    pods.add(0, role=LAUNCHER)
    pods.add(0, job="other")
    mine = pods.add(0)

    wait_until(lambda: hosts_in(program.output) == {mine: 2}, program)


def test_pods_that_were_there_before_are_listed(start, pods):
    hosts = {pods.add(number): 2 for number in range(3)}

    with start("--names", "uid") as program:
        wait_until(lambda: hosts_in(program.output) == hosts, program)

    assert program.exit_code == 0, "SIGTERM ends it"
    assert not re.search("Traceback|ERROR", program.log())


def test_it_ends_while_its_watch_is_silent(program, pods):
    mine = pods.add(0)
    wait_until(lambda: hosts_in(program.output) == {mine: 2}, program)
    # By then it waits in the system for the watch.
    watch(lambda: hosts_in(program.output) == {mine: 2}, 0.5)

    program.signal_another_thread()

    assert program.process.wait(10) == 0


def test_an_evicted_pod_is_removed_so_that_another_one_is_made(start, cluster, pods):
    delete = {**rule("", "pods", "delete"), "resourceNames": ["job-worker-0", "job-worker-1"]}
    cluster.patch("Role", "read-pods", {"rules": [READ_PODS, delete]})
    pods.add(0)
    second = pods.add(1)

    with start("--replace-failed") as program:
        wait_until(lambda: len(hosts_in(program.output) or {}) == 2, program)
        pods.evict("job-worker-0")
        wait_until(lambda: not pods.is_there("job-worker-0"), program)

        # The pod is gone before the program has seen the event that says so.
        wait_until(lambda: hosts_in(program.output) == {second: 2}, program)
        assert pods.is_there("job-worker-1")


def test_without_the_right_to_it_the_others_are_still_discovered(start, pods):
    pods.add(0)

    with start("--replace-failed") as program:
        wait_until(lambda: len(hosts_in(program.output) or {}) == 1, program)
        pods.evict("job-worker-0")
        wait_until(lambda: hosts_in(program.output) == {}, program)
        second = pods.add(1)
        wait_until(lambda: hosts_in(program.output) == {second: 2}, program)

        assert "be replaced" in program.log()
        assert pods.is_there("job-worker-0")
