"""A whole job in a cluster: submitted by `edl`, run in pods, changed by what becomes of its pods.

Real: the command, the client, TLS and RBAC, host discovery, the coordinator, the ring, the network
between pods, the readiness probe. Doubles: the API server, mpi-operator and the Job controller
(tests/kube), and in kubelet.py what the kubelets and the cluster's DNS would do.
"""

import os
import signal
import time

import pytest

from tests.netns import kubelet

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

LONG, SHORT = 300, 100
"""Epochs of a job that waits for several newcomers, and of one whose workers are soon back."""


def test_the_ring_follows_the_pods_of_its_job(job, say):
    assert "job:" in job.submit(epochs=LONG)
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
    reasons = {e.event.reason for e in job.events("reset") if e.time > deleted_at}
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

    lost = job.nodes.container_of("count-worker-2").host
    lost_at = time.time()
    lost.cut()
    job.train_on(size=2, since=lost_at, seconds=60)
    say(f"a pod's host vanished: a step of the others {time.time() - lost_at:.1f} s later")

    job.finish()


def wait_for_takeover(job):
    """Wait for another launcher; returns the time at which it took over."""
    kubelet.wait_until(lambda: "count-launcher-1" in job.nodes.pods, "another launcher", job.nodes)
    return job.wait_for(
        lambda: [e for e in job.events("job") if e.event.state == "taken over"], "a takeover", 90
    )[0].time


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
    taken = wait_for_takeover(job)
    steps = [e for e in job.events("step") if killed_at < e.time]
    say(f"the ring of {steps[-1].event.size} trained on without a launcher")
    job.train_on(size=2, since=taken)
    worker_uid = job.nodes.pods["count-worker-0"]["metadata"]["uid"]
    assert job.nodes.containers[worker_uid].num_starts == 1, "no worker was started anew for it"
    job.finish("count-launcher-1")


def test_the_ring_outlasts_a_launcher_on_a_lost_node(job, say):
    """Of mpi-operator 0.8.1 and later: the Job waits for the last phase of the launcher's pod."""
    job.submit(**{"elastic.max_np": 2, "checkpoint.every_steps": 10})
    job.ring(2)

    lost, lost_at = "count-launcher-0", time.time()
    host = job.nodes.container_of(lost).host
    job.nodes.lose(lost)
    job.nodes.delete(lost, gracePeriodSeconds=0)  # kubectl delete pod --force
    away_at = time.time() + 15
    job.train_on(size=2, since=away_at, seconds=60)
    assert [name for name in job.nodes.pods if "launcher" in name] == [lost]
    assert [e for e in job.events("checkpoint") if e.time > lost_at and e.event.step]
    say("the ring trained on without a launcher, and saved its checkpoints")

    job.nodes.set_out_of_service(lost)
    told_at = time.time()
    taken = wait_for_takeover(job)
    say(f"another launcher took over {taken - told_at:.1f} s after the node was given up")
    job.train_on(size=2, since=taken)
    for name in ("count-worker-0", "count-worker-1"):
        assert job.nodes.container_of(name).num_starts == 1, "no worker was started anew for it"
    host.mend()  # The machine is switched on again, and nothing runs there.
    job.finish("count-launcher-1")


def test_the_slots_of_a_pod_fail_one_by_one(job):
    job.submit(epochs=SHORT, **{"kubernetes.slots_per_worker": 2, "elastic.max_np": 2})
    job.ring(2)
    (pod,) = [name for name in job.nodes.pods if "-worker-" in name]
    for name in ("count-launcher-0", pod):
        job.nodes.container_of(name).assert_is_restricted()
    running = job.nodes.containers[job.nodes.pods[pod]["metadata"]["uid"]]
    workers = running.workers()
    assert len(workers) == 2

    killed_at = time.time()
    os.kill(workers[0], signal.SIGKILL)
    job.train_on(size=1, since=killed_at, seconds=60)
    job.ring(2)

    assert running.num_starts == 1, "in the same container"
    job.finish()
