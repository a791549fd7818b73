"""A whole job in a cluster: submitted by `edl`, run in pods, changed by what becomes of its pods.

Real: the command, the client, TLS and RBAC, host discovery, the coordinator, the ring, the network
between pods, the readiness probe. Doubles: the API server (tests/kube) and, in kubelet.py, what
mpi-operator, the kubelets and the cluster's DNS would do.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.credentials import Place
from tests import counting_job
from tests.kube import certificates
from tests.kube.apiserver.server import ApiServer
from tests.kube.conftest import ADMIN, CRD, NO_CRD, add_tokens, write_kubeconfig
from tests.netns import kubelet
from tests.netns.job import REPOSITORY, Watched

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

EPOCHS = 400
"""Enough for a job that waits for several newcomers."""
CLAIM = "shared"
CONFIG = {
    "launch": "kubernetes", "launch.np": 2, "elastic.max_np": 3, "image": "registry.example/edl:1",
    "kubernetes.name": "count", "model_zoo": "/data/zoo", "output": "/data/out",
    "kubernetes.volumes": f"{{data: {{claim: {CLAIM}, mount: /data}}}}",
}  # fmt: skip


class Job(Watched):
    """A job and the cluster that it runs in."""

    def __init__(self, lab, folder):
        self.volume = folder / "volume"
        self.volume.mkdir()
        super().__init__(self.volume, self.volume / "out.job")
        self.control = lab.host()
        tls = folder / "tls"
        tls.mkdir()
        certificates.make(tls, self.control.address)
        context = certificates.server_context(tls)
        self.server = ApiServer(crd=CRD, host=self.control.address, tls=context)
        add_tokens(self.server)
        kubelet.run_on(self.control, lambda: self.server.start(kubelet.PORT))
        self.kubeconfig = write_kubeconfig(
            folder / "kubeconfig", self.server.url, {"token": ADMIN}, ca_file=tls / "ca.crt"
        )
        (folder / "ca.crt").write_bytes((tls / "ca.crt").read_bytes())
        self.nodes = kubelet.Nodes(
            self.server, lab, self.control, folder, claims={CLAIM: self.volume}
        )

    def submit(self, **settings):
        """`edl train launch=kubernetes`, on a host that only reaches the API server."""
        zoo = REPOSITORY / "tests" / "zoo"
        subprocess.run(["cp", "-r", str(zoo), str(self.volume / "zoo")], check=True)
        words = counting_job.overrides(self.volume, epochs=EPOCHS, **{**CONFIG, **settings})
        # In the pods the volume is somewhere else.
        words = [word.replace(str(self.volume), "/data") for word in words]
        log = self.volume.parent / "submit.log"
        command = (sys.executable, "-m", "edl_horovod", "train", *words)
        variables = {"KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": str(REPOSITORY)}
        child = self.control.start(*command, log=log, **variables)
        assert child.wait(60) == 0, log.read_text()
        return log.read_text()

    def ask(self, question):
        """What the API server answers to a call of our client."""

        def answer():
            place = Place(namespace="default", kubeconfig=str(self.kubeconfig), context="test")
            with Cluster(place) as cluster:
                return question(cluster)

        return kubelet.run_on(self.control, answer)

    def scale(self, num_pods):
        changes = {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": num_pods}}}}
        self.ask(lambda cluster: cluster.patch("MPIJob", "count", changes))

    def ring(self, size, seconds=240):
        """Wait for a step of a ring of that size from now on; returns when it ended."""
        return self.train_on(size=size, seconds=seconds)

    def describe(self):
        return kubelet.describe(self.nodes) + "\n" + super().describe()

    def finish(self, launcher="count-launcher-0"):
        self.hurry()
        kubelet.wait_until(
            lambda: self.nodes.pods[launcher]["status"].get("phase") in ("Succeeded", "Failed"),
            "the end of the launcher", self.nodes,
        )  # fmt: skip
        assert self.nodes.pods[launcher]["status"]["phase"] == "Succeeded", self.describe()
        counting_job.assert_each_record_once_an_epoch(self.volume / "out", epochs=EPOCHS)


@pytest.fixture
def job(lab, tmp_path):
    if not CRD.is_file():
        pytest.skip(NO_CRD)
    made = Job(lab, tmp_path)
    with made.nodes:
        yield made
    made.server.stop()


def test_the_ring_follows_the_pods_of_its_job(job, say):
    said = job.submit()
    assert "job:" in said
    job.ring(2)

    job.scale(3)
    job.ring(3)
    say("scaled from 2 to 3 pods: the ring grew when the third was ready")

    victim = "count-worker-1"
    uid = job.nodes.pods[victim]["metadata"]["uid"]
    deleted_at = time.time()
    job.ask(lambda cluster: cluster.delete("Pod", victim))
    job.train_on(size=2, since=deleted_at, seconds=60)
    say(f"a pod was deleted: a step of the others {time.time() - deleted_at:.1f} s later")
    job.ring(3)
    reasons = {e["reason"] for e in job.events("reset") if e["time"] > deleted_at}
    assert reasons == {"membership changed"}, "it left between two steps"
    assert job.nodes.pods[victim]["metadata"]["uid"] != uid, "the next pod of that name"

    victim = "count-worker-0"
    uid = job.nodes.pods[victim]["metadata"]["uid"]
    evicted_at = time.time()
    job.nodes.evict(victim)
    job.train_on(size=2, since=evicted_at, seconds=60)
    say(f"a pod was evicted: a step of the others {time.time() - evicted_at:.1f} s later")
    job.ring(3)
    assert job.nodes.pods[victim]["metadata"]["uid"] != uid, "the launcher had it replaced"

    lost = job.nodes.host_of("count-worker-2")
    lost_at = time.time()
    lost.cut()
    job.train_on(size=2, since=lost_at, seconds=60)
    say(f"a pod's host vanished: a step of the others {time.time() - lost_at:.1f} s later")

    job.finish()


def test_workers_and_launcher_come_back(job, say):
    job.submit(**{"elastic.max_np": 2})
    job.ring(2)

    worker = "count-worker-1"
    uid = job.nodes.pods[worker]["metadata"]["uid"]
    killed_at = time.time()
    job.nodes.kill(worker)
    job.train_on(size=1, since=killed_at, seconds=60)
    job.ring(2)
    assert job.nodes.pods[worker]["metadata"]["uid"] == uid, "in the same pod"

    # With the address and all processes of the first one.
    job.nodes.kill("count-launcher-0")
    kubelet.wait_until(
        lambda: "count-launcher-1" in job.nodes.pods, "another launcher", job.nodes
    )  # fmt: skip
    taken = job.wait_for(
        lambda: [e for e in job.events("job") if e["state"] == "taken over"], "a takeover", 90
    )[0]["time"]
    steps = [e for e in job.events("step") if killed_at < e["time"]]
    say(f"the ring of {steps[-1]['size']} trained on without a launcher")
    job.train_on(size=2, since=taken)
    worker_uid = job.nodes.pods["count-worker-0"]["metadata"]["uid"]
    assert job.nodes.containers[worker_uid].num_starts == 1, "no worker was started anew for it"
    job.finish("count-launcher-1")


def is_worker(pid):
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"edl_horovod.worker" in words


def test_the_slots_of_a_pod_fail_one_by_one(job):
    job.submit(**{"kubernetes.slots_per_worker": 2, "elastic.max_np": 2})
    job.ring(2)
    (pod,) = [name for name in job.nodes.pods if "-worker-" in name]
    running = job.nodes.containers[job.nodes.pods[pod]["metadata"]["uid"]]
    workers = [pid for pid in running.host.pids() if is_worker(pid)]
    assert len(workers) == 2

    killed_at = time.time()
    os.kill(workers[0], signal.SIGKILL)
    job.train_on(size=1, since=killed_at, seconds=60)
    job.ring(2)

    assert running.num_starts == 1, "in the same container"
    job.finish()
