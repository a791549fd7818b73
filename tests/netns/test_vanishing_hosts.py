"""Hosts that vanish without a word and return: nothing is lost, and the others hardly wait."""

import itertools
import time

import pytest

from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove
from tests.netns.job import HostsJob
from tests.waiting import watch

pytestmark = pytest.mark.root

STALL_SECONDS = 5.0
"""From the cut to the end of the survivors' next step, at most."""


def cut_and_return(job, host, say, *, left):
    """Cut a host off; returns how long the others stood still. Then let it return."""
    cut_at = time.time()
    host.cut()
    stall = job.train_on(size=left, since=cut_at) - cut_at
    say(f"without {host.address}: a stall of {stall:.1f} s")
    watch(lambda: not job.steps(since=cut_at, size=left + 1), 1)
    host.mend()
    job.train_on(size=left + 1)
    return stall


def test_survivors_of_a_cut_link_train_on_soon_and_the_host_comes_back(lab, tmp_path, say):
    job = HostsJob(lab, tmp_path, num_hosts=3)
    job.train_on(size=3)
    leader = job.leader()
    other = next(host for host in job.hosts if host is not leader)
    assert cut_and_return(job, other, say, left=2) <= STALL_SECONDS
    assert cut_and_return(job, leader, say, left=2) <= STALL_SECONDS
    job.finish()
    job.assert_each_record_once_an_epoch()


def test_a_host_cut_off_between_two_buckets_costs_the_step_in_flight_alone(lab, tmp_path, say):
    settings = {"model_def": "hanging", "params.hang_in": tmp_path, "debug.ledger": "true"}
    settings |= {"params.num_clocks": 20, "train.bucket_bytes": 1}
    job = HostsJob(lab, tmp_path, num_hosts=3, **settings)
    job.train_on(size=3)
    leader = job.leader()
    other = next(host for host in job.hosts if host is not leader)
    for host in (other, leader):
        pause = tmp_path / "backward-0"
        pause.touch()
        job.wait_for(pause.with_suffix(".reached").exists, "a step amid its backward pass")
        # The buckets of the clocks are through on all ranks by then; that of the counts is not.
        watch(pause.with_suffix(".reached").exists, 1)
        cut_at = time.time()
        host.cut()
        pause.unlink()
        stall = job.train_on(since=cut_at) - cut_at
        say(f"without {host.address}, amid a step: a stall of {stall:.1f} s")
        assert stall <= STALL_SECONDS
        assert job.steps(since=cut_at)[0].event.size == 2  # So the step in flight was lost.
        host.mend()
        job.train_on(size=3)
        pause.with_suffix(".reached").unlink()
    job.finish()
    job.assert_each_record_once_an_epoch()
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, f"{proof.violations}\n{job.describe()}"
    assert proof.num_redone_steps == 0


def test_the_ring_trains_on_while_its_coordinator_cannot_be_reached(lab, tmp_path):
    job = HostsJob(lab, tmp_path, num_hosts=2)
    job.train_on(size=2)
    job.first.cut()
    cut_at = time.time()
    watch(lambda: not job.result.exists(), 8)
    steps = job.steps(since=cut_at)
    gaps = [b.time - a.time for a, b in itertools.pairwise(steps)]
    assert max(gaps) < 2.0, job.describe()
    assert {step.event.size for step in steps} == {2}
    job.first.mend()
    # It is in charge again: a host that is no longer wanted leaves.
    job.want(job.hosts[0])
    job.train_on(size=1)
    job.finish()
    job.assert_each_record_once_an_epoch()
