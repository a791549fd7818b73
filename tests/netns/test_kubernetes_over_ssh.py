"""Whole jobs in a cluster whose ranks are started over ssh: by plain `horovodrun`, or by `mpirun`.

What is real and what a double is as in test_kubernetes.py; real too are `sshd` and `ssh`, with the
settings of docker/ssh and as the image's user.
"""

import shutil
import time
from pathlib import Path

import pytest

from tests.netns import ssh

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

EPOCHS = 30
"""Of jobs that wait for no newcomer."""


@pytest.fixture(autouse=True)
def can_have_ssh():
    """Skip with the reason where there is no `sshd`."""
    if reason := ssh.what_is_missing():
        pytest.skip(reason)


def test_horovodrun_goes_on_without_a_deleted_pod(job, say):
    job.submit(epochs=EPOCHS, **{"kubernetes.style": "horovodrun", "elastic.max_np": 2})
    # The first ring is formed twice; who is lost meanwhile holds up the others.
    job.wait_for(lambda: len(job.events("reset")) > 1, "the second forming", 180)
    job.ring(2)

    deleted_at = time.time()
    job.ask(lambda cluster: cluster.delete("Pod", "count-worker-1"))
    job.train_on(size=1, since=deleted_at, seconds=90)
    say(f"a pod was deleted: a step of the other {time.time() - deleted_at:.1f} s later")

    job.finish()


def test_mpirun_trains_to_the_end(job):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun not found (pip install 'edl_horovod[mpi]')")
    style = {"kubernetes.style": "mpirun", "kubernetes.env": "{COLOUR: blue}"}
    job.submit(epochs=EPOCHS, **{"elastic.max_np": 2, **style})
    job.ring(2)

    workers = [job.nodes.container_of(f"count-worker-{index}").workers() for index in (0, 1)]
    assert [len(pids) for pids in workers] == [1, 1], "a rank in each pod"
    for (pid,) in workers:
        assert b"COLOUR=blue" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    job.finish()
