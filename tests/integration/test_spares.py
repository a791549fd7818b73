"""Warm workers beyond the ring: a lost rank's place is filled at once."""

import signal

import pytest

from tests import counting_job
from tests.integration.test_scale import edl, status


@pytest.mark.long
def test_a_spare_takes_the_place_of_a_killed_rank(start, tmp_path):
    settings = {"launch.np": 2, "elastic.spares": 1}
    job = start("train", *counting_job.overrides(tmp_path, **settings))
    job.wait_for_step(3)
    job.wait_for(lambda _: status(job)["spares"], "a spare")
    members = job.events("generation")[-1].event.members
    (spare,) = status(job)["spares"]
    assert spare not in members
    assert f"spares     {spare}" in edl("status", job.job_dir)[1]

    first = job.generation()
    job.signal_worker(int(members[1].split(":")[1]), signal.SIGKILL)
    job.wait_for_ring(2, after=first)
    assert job.events("generation")[-1].event.members == (members[0], spare)
    reset = job.events("reset")[-1]
    assert (reset.event.old_size, reset.event.new_size) == (2, 2)
    assert reset.event.seconds < 3
    # The slot of the killed one comes back, and waits.
    job.wait_for(lambda _: status(job)["spares"] == [members[1]], "the next spare")
    (tmp_path / "hurry").touch()
    job.succeed()
    assert {e.event.size for e in job.events("generation")} == {2}
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
