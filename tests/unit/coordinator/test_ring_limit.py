"""The coordinator follows the policy: rings grow while it pays, and the others stay warm."""

import pytest

from edl_horovod.job.events import line_of
from tests.job_events import recorded


class Clock:
    """Writes what a leader would, as if time passed."""

    def __init__(self, job, rate_of):
        self._path = job.dir / "events.jsonl"
        self._rate_of, self._now, self._records = rate_of, 1000.0, 0.0

    def train(self, size, seconds):
        for _ in range(seconds * 5):
            self._now, self._records = self._now + 0.2, self._records + 0.2 * self._rate_of(size)
            step = recorded("step", self._now, records_seen=round(self._records), size=size)
            with self._path.open("a") as log:
                log.write(line_of(step))


@pytest.mark.job(timings={"events_poll_seconds": 0.01}, autoscale=True)
async def test_a_ring_that_does_not_pay_is_taken_back_and_its_worker_stays_warm(job):
    clock = Clock(job, lambda _size: 100.0)
    old = await job.worker(0)
    new = await job.worker(1)
    await job.ring(old)
    clock.train(1, 10)
    await job.ring(old, new, least_generation=2)
    clock.train(2, 10)
    await job.ring(old, least_generation=3)
    assert new.is_ready
    assert [e.limit for e in job.events("autoscale")] == [2, 1]
    assert " 0%" in job.events("generation")[-1].reason


@pytest.mark.job(timings={"events_poll_seconds": 0.01}, autoscale=True, max_np=4)
async def test_a_ring_that_pays_takes_all_step_by_step(job):
    clock = Clock(job, lambda size: 100.0 * size)
    workers = [await job.worker(slot) for slot in range(4)]
    for size in (1, 2, 3, 4):
        await job.ring(*workers[:size], least_generation=size)
        clock.train(size, 10)
    assert [e.limit for e in job.events("autoscale")] == [2, 3, 4]
