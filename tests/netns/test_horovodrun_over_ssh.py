"""Plain `horovodrun` that starts its workers by ssh on other hosts, and a host that vanishes."""

import os
import sys
import time

import pytest

from edl_horovod.supervisor.plan import locate
from tests.netns import ssh
from tests.netns.job import VARIABLES, Watched, write_config
from tests.netns.lab import INTERFACE

pytestmark = pytest.mark.root

STALL_SECONDS = 10.0
"""Of the survivor: ssh and the driver have to notice too (docs/how-to/horovodrun.md)."""


def test_a_job_over_ssh_survives_a_host_that_vanishes(lab, tmp_path, say):
    if reason := ssh.what_is_missing():
        pytest.skip(reason)
    launcher, *workers = [lab.host() for _ in range(3)]
    tools = ssh.set_up(tmp_path / "ssh", workers)
    job = Watched(tmp_path, tmp_path / "job")
    config = write_config(tmp_path, job.job_dir, **{"elastic.max_np": 2, "launch.np": 2})
    (job.job_dir / "logs").mkdir()
    discovery = tmp_path / "discover.sh"
    lines = "".join(f"echo {host.address}:1\n" for host in workers)
    discovery.write_text(f"#!/bin/sh\n{lines}")
    discovery.chmod(0o755)
    flags = ["-np", "2", "--min-np", "1", "--max-np", "2", "--network-interfaces", INTERFACE]
    flags += ["--host-discovery-script", discovery]
    horovodrun = launcher.start(
        locate("horovodrun"),
        *flags,
        *(sys.executable, "-m", "edl_horovod.worker", "--config", config),
        log=job.job_dir / "logs" / "horovodrun",
        **{**VARIABLES, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    # The first ring is formed twice; who is lost meanwhile holds up the others for Gloo's time-out.
    job.wait_for(lambda: len(job.events("reset")) > 1, "the second forming", 180)
    job.train_on(size=2)
    cut_at = time.time()
    workers[1].cut()
    stall = job.train_on(size=1, since=cut_at) - cut_at
    say(f"horovodrun over ssh, a host cut off: a stall of {stall:.1f} s")
    assert stall < STALL_SECONDS
    job.hurry()
    assert horovodrun.wait(90) == 0, job.describe()
    job.assert_each_record_once_an_epoch()
