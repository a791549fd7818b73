"""A coordinator that must end, with its workers or without them."""

import pytest

# So that a test that waits for a successor, who does not come, fails.
pytestmark = pytest.mark.job(timings={"leaver_seconds": 60.0, "fellow_seconds": 0.3})


def farewell(worker):
    return next(message for message in worker.heard if message["kind"] == "stop")


def keepers(*workers):
    return [worker for worker in workers if farewell(worker).get("has_state")]


@pytest.mark.job(wanted={"a": 1, "b": 1, "c": 1})
async def test_all_leave_and_the_oldest_keeps_the_state(job):
    workers = await job.ring_of("a", "b", "c")
    for worker in reversed(workers):
        worker.send("leaving")
    job.coordinator.end_soon()
    assert await job.end() is None
    assert keepers(*workers) == [workers[0]]
    assert job.saved()["members"] == []
    assert not (job.dir / "result.json").exists()
    assert job.events("job") == []


async def test_the_most_advanced_keeps_the_state(job):
    workers = await job.ring_of(0, 1, 2)
    for worker in workers:
        worker.ignores = {"change"}
        worker.send("leaving")
    job.coordinator.end_soon()
    await job.until(lambda: all("change" in worker.kinds() for worker in workers))
    for worker, step in zip(workers, (49, 50, 50), strict=True):
        worker.step = step
        worker.ready()
    await job.end()
    assert keepers(*workers) == [workers[1]]


@pytest.mark.job(wanted={"localhost": 2})
async def test_a_holder_that_waits_for_a_successor_waits_no_more(job):
    (only,) = await job.ring_of(0)
    only.send("leaving")
    await job.hold(lambda: only.is_connected, 0.1)
    job.coordinator.end_soon()
    await job.end()
    assert keepers(only) == [only]


async def test_workers_that_are_told_a_little_later_are_waited_for(job):
    workers = await job.ring_of(0, 1)
    job.coordinator.end_soon()
    workers[0].send("leaving")
    await job.until(lambda: not workers[0].is_connected)
    assert keepers(workers[0]) == []
    workers[1].send("leaving")
    await job.end()
    assert keepers(workers[1]) == [workers[1]]


async def test_a_coordinator_that_goes_alone_leaves_the_ring_to_the_next_one(job):
    workers = await job.ring_of(0, 1)
    job.coordinator.end_soon()
    assert await job.end() is None
    assert [worker.kinds() for worker in workers] == [["assign"], ["assign"]]
    assert job.saved()["members"] == [worker.name for worker in workers]


async def test_a_member_that_goes_with_the_coordinator_hands_over_first(job):
    leaver, stays = await job.ring_of(0, 1)
    leaver.send("leaving")
    job.coordinator.end_soon()
    await job.end()
    assert keepers(leaver) == []
    assert stays.place["size"] == 1
    assert not stays.is_ready
    assert job.saved()["members"] == [stays.name]


@pytest.mark.job(timings={"fellow_seconds": 60.0})
async def test_where_nobody_is_there_it_ends_at_once(job):
    job.coordinator.end_soon()
    assert await job.end() is None
