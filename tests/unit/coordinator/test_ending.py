"""A coordinator that must end, with its workers or without them."""

import functools

import pytest


@pytest.fixture
def play(play):
    """So that a test that waits for a successor, who does not come, fails."""
    return functools.partial(play, timings={"leaver_seconds": 60.0, "fellow_seconds": 0.3})


def farewell(worker):
    return next(message for message in worker.heard if message["kind"] == "stop")


def keepers(*workers):
    return [worker for worker in workers if farewell(worker).get("has_state")]


def test_all_leave_and_the_oldest_keeps_the_state(play):
    async def scenario(job):
        workers = [await job.worker(0, host) for host in "abc"]
        await job.ring(*workers)
        for worker in reversed(workers):
            worker.send("leaving")
        job.coordinator.end_soon()
        assert await job.end() is None
        assert keepers(*workers) == [workers[0]]
        assert job.saved()["members"] == []
        assert not (job.dir / "result.json").exists()
        assert job.events("job") == []

    play(scenario, wanted={"a": 1, "b": 1, "c": 1}, num_start=3)


def test_the_most_advanced_keeps_the_state(play):
    async def scenario(job):
        workers = [await job.worker(slot) for slot in range(3)]
        await job.ring(*workers)
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

    play(scenario, num_start=3)


def test_a_holder_that_waits_for_a_successor_waits_no_more(play):
    async def scenario(job):
        only = await job.worker(0)
        await job.ring(only)
        only.send("leaving")
        await job.hold(lambda: only.is_connected, 0.1)
        job.coordinator.end_soon()
        await job.end()
        assert keepers(only) == [only]

    play(scenario, wanted={"localhost": 2})


def test_workers_that_are_told_a_little_later_are_waited_for(play):
    async def scenario(job):
        workers = [await job.worker(slot) for slot in range(2)]
        await job.ring(*workers)
        job.coordinator.end_soon()
        workers[0].send("leaving")
        await job.until(lambda: not workers[0].is_connected)
        assert keepers(workers[0]) == []
        workers[1].send("leaving")
        await job.end()
        assert keepers(workers[1]) == [workers[1]]

    play(scenario, num_start=2)


def test_a_coordinator_that_goes_alone_leaves_the_ring_to_the_next_one(play):
    async def scenario(job):
        workers = [await job.worker(slot) for slot in range(2)]
        await job.ring(*workers)
        job.coordinator.end_soon()
        assert await job.end() is None
        assert [worker.kinds() for worker in workers] == [["assign"], ["assign"]]
        assert job.saved()["members"] == [worker.name for worker in workers]

    play(scenario, num_start=2)


def test_a_member_that_goes_with_the_coordinator_hands_over_first(play):
    async def scenario(job):
        leaver, stays = [await job.worker(slot) for slot in range(2)]
        await job.ring(leaver, stays)
        leaver.send("leaving")
        job.coordinator.end_soon()
        await job.end()
        assert keepers(leaver) == []
        assert stays.place["size"] == 1
        assert not stays.is_ready
        assert job.saved()["members"] == [stays.name]

    play(scenario, num_start=2)


def test_where_nobody_is_there_it_ends_at_once(play):
    async def scenario(job):
        job.coordinator.end_soon()
        assert await job.end() is None

    play(scenario, timings={"fellow_seconds": 60.0})
