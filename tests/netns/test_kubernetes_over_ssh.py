"""Whole jobs in a cluster whose ranks are started over ssh: by plain `horovodrun`, or by `mpirun`.

What is real and what a double is as in test_kubernetes.py; real too are `sshd` and `ssh`, with the
settings of docker/ssh and as the image's user.
"""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from edl_horovod.supervisor.plan import locate
from tests.netns import ssh
from tests.waiting import is_running

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

EPOCHS = 40
"""Enough for a ring that begins twice."""
MPI_EPOCHS = 20
"""Enough for a ring that is lost soon; between ranks that share cores, steps of MPI take long."""
NO_MPIRUN = "mpirun not found (pip install -c constraints.txt '.[mpi]')"


@pytest.fixture(autouse=True)
def can_have_ssh():
    """Skip with the reason where there is no `sshd`."""
    if reason := ssh.what_is_missing():
        pytest.skip(reason)


def start_horovodrun(job, **settings):
    """The first ring is formed twice; who is lost between the two holds up the others."""
    settings |= {"kubernetes.style": "horovodrun", "elastic.max_np": 2}
    job.submit(epochs=EPOCHS, **settings)
    job.wait_for(lambda: len(job.events("reset")) > 1, "the second forming", 180)
    job.ring(2)


def test_horovodrun_goes_on_without_a_deleted_pod_and_then_with_the_next(job, say):
    start_horovodrun(job)

    lost = job.nodes.container_of("count-worker-1")
    deleted_at = time.time()
    job.ask(lambda cluster: cluster.delete("Pod", "count-worker-1"))
    first = job.train_on(size=1, since=deleted_at)
    last = max(e.time for e in job.events("step") if e.time < first)
    say(f"a pod was deleted: a step of the other {first - deleted_at:.1f} s later")
    say(f"between that and the one before it {first - last:.2f} s")
    job.ring(2)
    say(f"and one with the pod in its place {time.time() - deleted_at:.1f} s later")
    (left, *_) = [e for e in job.events("reset") if e.time > deleted_at]
    assert (left.event.new_size, left.event.reason) == (1, "membership changed"), (
        "after a whole step"
    )
    assert lost.hook.returncode == 0, (lost.folder / "pre-stop-log").read_text()
    said = (job.job_dir / "logs" / "worker.log").read_text().splitlines()
    assert [line for line in said if f"{lost.host.address}:0 I dismissed" in line]

    job.finish()


def test_the_last_pods_that_horovodrun_needs_wait_for_nothing(job, say):
    start_horovodrun(job, **{"elastic.min_np": 2})
    lost = job.nodes.container_of("count-worker-1")

    deleted_at = time.time()
    job.ask(lambda cluster: cluster.delete("Pod", "count-worker-1"))
    job.wait_for(lambda: lost.child.poll() is not None, "the end of the pod", 20)
    say(f"a pod without which there is no ring was gone {time.time() - deleted_at:.1f} s later")
    reset = job.wait_for(lambda: [e for e in job.events("reset") if e.time > deleted_at], "a ring")
    first = job.ring(2, since=reset[0].time)
    say(f"and a step with the pod in its place ended {first - deleted_at:.1f} s later")

    job.finish()


def test_horovodrun_takes_a_pod_back_whose_container_was_killed(job, say):
    start_horovodrun(job)
    uid = job.nodes.pods["count-worker-1"]["metadata"]["uid"]

    killed_at = time.time()
    job.nodes.kill("count-worker-1")
    job.train_on(size=1, since=killed_at)
    say(f"a container was killed: a step of the other {time.time() - killed_at:.1f} s later")
    job.ring(2)
    say(f"and one with its container in place again {time.time() - killed_at:.1f} s later")

    assert job.nodes.pods["count-worker-1"]["metadata"]["uid"] == uid
    job.finish()


@pytest.mark.parametrize("how", ["killed", "cut off"])
@pytest.mark.parametrize("style", ["horovodrun", "mpirun"])
def test_a_job_goes_on_from_the_checkpoint_when_its_launcher_is(style, how, job, say):
    if style == "mpirun" and shutil.which(locate("mpirun")) is None:
        pytest.skip(NO_MPIRUN)
    settings = {"kubernetes.style": style, "checkpoint.every_steps": 10}
    job.submit(epochs=EPOCHS, **settings, **{"elastic.max_np": 2})
    num_formings = 2 if style == "horovodrun" else 1
    job.wait_for(lambda: len(job.events("reset")) >= num_formings, "the whole ring", 180)
    step = written_after(job, job.ring(2))
    ranks = [pid for index in (0, 1) for pid in workers_of(job, index)]
    assert len(ranks) == 2
    lost = job.nodes.container_of("count-launcher-0")

    lost_at = time.time()
    if how == "killed":
        job.nodes.kill("count-launcher-0")
    else:
        lost.host.cut()
    job.wait_for(lambda: not any(map(is_running, ranks)), "the end of the ranks", 20)
    say(f"the launcher was {how}: its ranks were gone {time.time() - lost_at:.1f} s later")
    first = assert_goes_on(job, lost, step)
    say(f"the next launcher's ring ended a step {first - lost_at:.1f} s after the loss")


def test_mpirun_trains_to_the_end(job):
    if shutil.which(locate("mpirun")) is None:
        pytest.skip(NO_MPIRUN)
    style = {"kubernetes.style": "mpirun", "kubernetes.env": "{COLOUR: blue}"}
    job.submit(epochs=MPI_EPOCHS, **{"elastic.max_np": 2, **style})
    job.ring(2)

    workers = [workers_of(job, index) for index in (0, 1)]
    assert [len(pids) for pids in workers] == [1, 1], "a rank in each pod"
    for name in ("count-launcher-0", "count-worker-0"):
        job.nodes.container_of(name).assert_is_restricted()
    for (pid,) in workers:
        assert b"COLOUR=blue" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    job.finish()


@pytest.mark.parametrize("how", ["deleted", "cut off", "without its rank"])
def test_mpirun_goes_on_from_the_checkpoint_when_a_pod_is(how, job, say):
    style = {"kubernetes.style": "mpirun", "checkpoint.every_steps": 10}
    job.submit(epochs=MPI_EPOCHS, **style, **{"elastic.max_np": 2})
    step = written_after(job, job.ring(2))
    lost = job.nodes.container_of("count-worker-1")

    lost_at = time.time()
    if how == "deleted":
        job.ask(lambda cluster: cluster.delete("Pod", "count-worker-1"))
    elif how == "cut off":
        lost.host.cut()
    else:
        (rank,) = lost.workers()
        os.kill(rank, signal.SIGKILL)
    job.wait_for(lambda: "count-launcher-1" in job.nodes.pods, "another launcher", 60)
    assert job.nodes.pods["count-launcher-0"]["status"]["phase"] == "Failed"
    (failed,) = [e for e in job.events("job") if e.event.state == "failed"]
    say(f"a pod was {how}: the launcher failed {failed.time - lost_at:.1f} s later")
    assert "count-worker-1" in failed.event.message
    if how == "without its rank":
        assert "rank 1 (count-worker-1:0) " in failed.event.message
    lost.host.mend()
    assert_goes_on(job, lost, step)


def workers_of(job, index):
    return job.nodes.container_of(f"count-worker-{index}").workers()


def assert_goes_on(job, lost, step):
    """See that another launcher takes the job over from a checkpoint, and end the job.

    Returns:
        When its first step with all ranks ended.
    """

    def taken_over():
        return [e for e in job.events("job") if e.event.state == "taken over"]

    (taken,) = job.wait_for(taken_over, "another launcher", 60)
    assert "checkpoint of" in taken.event.message
    lost.host.mend()  # What was left of it there has ended.
    first = job.ring(2, since=taken.time)
    (begun, *_) = [e for e in job.events("reset") if e.time > taken.time]
    assert begun.event.step >= step > 0
    job.finish("count-launcher-1")
    return first


def written_after(job, since):
    """Wait for a checkpoint; returns its step."""

    def written():
        checkpoints = [e for e in job.events("checkpoint") if e.time > since]
        return [e.event.step for e in checkpoints if e.event.state == "written"]

    return job.wait_for(written, "a checkpoint")[0]
