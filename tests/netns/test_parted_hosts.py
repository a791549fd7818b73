"""Two hosts that reach the coordinator and a third host, but not each other."""

import itertools
import time

import pytest

from tests.netns.job import HostsJob
from tests.waiting import watch

pytestmark = pytest.mark.root

GIVE_UP_SECONDS = 20.0
"""From the cut to the end of a smaller ring's first step, at most."""
WATCHED_SECONDS = 40.0
EPOCHS = 100
"""Enough for a job that is watched for so long."""


@pytest.mark.parametrize(
    ("num_hosts", "silently"), [(2, True), (3, False)], ids=["2, dropped packets", "3, no route"]
)
def test_a_smaller_ring_trains_and_tries_the_others_ever_more_rarely(
    lab, tmp_path, say, num_hosts, silently
):
    job = HostsJob(lab, tmp_path, num_hosts=num_hosts, epochs=EPOCHS)
    job.train_on(size=num_hosts)
    parted_at = time.time()
    job.hosts[0].part_from(job.hosts[1], silently=silently)
    stall = job.train_on(size=num_hosts - 1, since=parted_at) - parted_at
    say(f"{num_hosts} hosts, two of them parted: a stall of {stall:.1f} s")
    assert stall <= GIVE_UP_SECONDS, job.describe()
    watch(lambda: not job.result.exists(), WATCHED_SECONDS)
    tries = [
        e.time - parted_at
        for e in job.events("generation")
        if e.time > parted_at and not e.event.is_formed
    ]
    say("tried in vain after " + ", ".join(f"{at:.0f} s" for at in tries))
    ends = [e.time for e in job.steps(since=parted_at + stall)]
    lost = sum(max(b - a - 1.0, 0) for a, b in itertools.pairwise(ends))
    say(f"{lost:.1f} s of the next {WATCHED_SECONDS:.0f} without a step")
    # Before the smaller ring trains it is found out who is to be left out: many quick tries, maybe.
    later = [at for at in tries if at > stall]
    assert len(later) <= 5, job.describe()
    gaps = [b - a for a, b in itertools.pairwise([stall, *later])]
    assert len(gaps) < 3 or gaps[-1] > 1.5 * gaps[0], job.describe()
    assert any(e.event.state == "waiting" for e in job.events("worker"))
    job.finish()
    job.assert_each_record_once_an_epoch(EPOCHS)
