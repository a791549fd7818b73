"""Who is dismissed, and when: not before discovery spoke, and never with the job's only state."""

import time
from types import SimpleNamespace

import pytest

from edl_horovod.coordinator.decide import Candidate
from edl_horovod.coordinator.server import Roster
from edl_horovod.coordinator.workers import Worker


def dismissed(worker):
    return "stop" in worker.kinds()


@pytest.mark.job(wanted={"a": 1})
async def test_a_warm_worker_whose_host_is_not_listed_yet_waits_and_then_joins(job):
    first, early = await job.worker(0, "a"), await job.worker(0, "b")
    await job.ring(first)
    await job.hold(lambda: early.is_connected, 0.1)
    job.hosts(a=1, b=1)
    await job.ring(first, early)
    assert first.generation == 2


@pytest.mark.job(wanted={"a": 1, "b": 1}, max_np=1)
async def test_a_worker_that_waited_outside_goes_when_its_host_is_withdrawn(job):
    first, second = await job.worker(0, "a"), await job.worker(0, "b")
    await job.ring(first)
    job.hosts(a=1)
    await job.until(lambda: not second.is_connected)
    assert second.kinds() == ["stop"]


@pytest.mark.job(wanted={"localhost": 1})
async def test_a_worker_beyond_the_slots_of_a_listed_host_goes_at_once(job):
    first, late = await job.worker(0), await job.worker(1)
    await job.ring(first)
    await job.until(lambda: not late.is_connected)


@pytest.mark.job(wanted={"a": 1})
async def test_the_only_member_of_a_withdrawn_host_hands_its_state_over_first(job):
    (holder,) = await job.ring_of("a")
    job.hosts(b=1)
    await job.hold(lambda: not dismissed(holder), 0.1)
    successor = await job.worker(0, "b")
    await job.ring(successor, least_generation=3)
    await job.until(lambda: not holder.is_connected)
    assert [size for size, _ in job.generations()] == [1, 2, 1]
    assert successor.place["size"] == 1


async def with_a_newcomer_without_state(job):
    """A ring of the only holder of the state, on host a, and a newcomer on b that lacks it."""
    (holder,) = await job.ring_of("a")
    successor = job.fake(0, "b")
    successor.has_state = False
    await successor.connect()
    await job.ring(holder, successor)
    return holder, successor


@pytest.mark.job(wanted={"a": 1, "b": 1})
async def test_the_only_holder_stays_in_the_ring_until_a_newcomer_has_all_of_the_state(job):
    holder, successor = await with_a_newcomer_without_state(job)
    job.hosts(b=1)
    await job.hold(lambda: [size for size, _ in job.generations()] == [1, 2], 0.1)
    successor.has_state = True
    successor.formed()
    await job.ring(successor, least_generation=3)
    await job.until(lambda: not holder.is_connected)


@pytest.mark.job(wanted={"a": 1, "b": 1})
async def test_a_new_coordinator_learns_who_has_not_all_of_the_state(job):
    holder, successor = await with_a_newcomer_without_state(job)
    await job.restart()
    for worker in (holder, successor):
        await worker.connect(formed=2)
    job.hosts(b=1)
    await job.hold(lambda: not dismissed(holder), 0.1)
    assert [size for size, _ in job.generations()] == [1, 2]


async def test_the_holder_of_the_state_trains_on_until_it_can_hand_it_over(job):
    (holder,) = await job.ring_of(1)
    job.hosts(localhost=1)
    await job.hold(lambda: holder.kinds() == ["assign"], 0.1)


@pytest.mark.job(wanted={"a": 1})
async def test_where_no_slot_is_wanted_the_holder_of_the_state_waits_warm(job):
    (holder,) = await job.ring_of("a")
    job.hosts(a=0)
    await job.until(lambda: holder.is_ready)
    await job.hold(lambda: not dismissed(holder), 0.1)
    job.hosts(b=1)
    successor = await job.worker(0, "b")
    await job.ring(successor, least_generation=2)
    await job.until(lambda: not holder.is_connected)


@pytest.mark.job(wanted={"a": 2}, num_start=2)
async def test_one_of_several_withdrawn_members_keeps_the_state(job):
    first, second = await job.worker(0, "a"), await job.worker(1, "a")
    await job.ring(first, second)
    job.hosts(b=1)
    await job.until(lambda: not second.is_connected)
    await job.ring(first)
    successor = await job.worker(0, "b")
    await job.ring(successor, least_generation=4)
    await job.until(lambda: not first.is_connected)


async def test_a_withdrawn_member_that_is_a_step_ahead_brings_the_step_into_the_next_ring(job):
    behind, ahead = await job.ring_of(0, 1)
    behind.ignores = ahead.ignores = {"change"}
    job.hosts(localhost=1)
    await job.until(lambda: "change" in ahead.kinds())
    behind.ignores = ahead.ignores = set()
    behind.step, ahead.step = 49, 50
    behind.ready()
    ahead.ready()
    behind.step = 50  # As the next ring's sync leaves it.
    await job.ring(behind, least_generation=3)
    await job.until(lambda: not ahead.is_connected)
    assert [size for size, _ in job.generations()] == [2, 2, 1]


@pytest.mark.job(wanted={"a": 1, "b": 1}, max_np=1)
async def test_the_state_is_handed_over_also_where_the_ring_has_one_place(job):
    holder, waiting = await job.worker(0, "a"), await job.worker(0, "b")
    await job.ring(holder)
    holder.send("leaving")
    await job.ring(waiting, least_generation=3)
    await job.until(lambda: not holder.is_connected)
    assert [size for size, _ in job.generations()] == [1, 2, 1]


@pytest.mark.job(wanted={"localhost": 2})
async def test_all_members_are_asked_to_leave_and_the_last_waits_for_a_successor(job):
    first, second = await job.ring_of(0, 1)
    first.send("leaving")
    second.send("leaving")
    await job.until(lambda: not second.is_connected)
    await job.ring(first, least_generation=2)
    third = await job.worker(1)
    await job.ring(third, least_generation=4)
    await job.until(lambda: not first.is_connected)


@pytest.mark.job(wanted={"localhost": 2})
async def test_a_leaver_waits_for_a_successor_no_longer_than_it_may(job):
    (first,) = await job.ring_of(0)
    first.send("leaving")
    await job.hold(lambda: first.is_connected, 0.1)
    await job.until(lambda: not first.is_connected)


@pytest.mark.parametrize(
    ("left_before", "held_back", "seconds"),
    [(None, 0.0, None), (5.0, 0.0, 15.0), (5.0, 3.0, 3.0), (21.0, 3.0, 3.0), (21.0, 0.0, None)],
)
@pytest.mark.job(timings={"leaver_seconds": 20.0})
def test_the_members_are_chosen_again_when_a_worker_s_time_is_over(
    job, left_before, held_back, seconds
):
    now = time.monotonic()
    worker = Worker(
        Candidate(worker="a", host="a", slot=0, order=0),
        leaving_since=left_before and now - left_before,
        not_before=held_back and now + held_back,
    )
    server = SimpleNamespace(workers={"a": worker})
    until_next = Roster(server, job.settings, events=None, limit=None).until_next()
    assert until_next == (seconds and pytest.approx(seconds, abs=1.0))


@pytest.mark.job(wanted={"localhost": 1})
async def test_a_leaver_whose_own_slot_is_the_only_one_goes_at_once(job):
    (first,) = await job.ring_of(0)
    first.send("leaving")
    await job.until(lambda: not first.is_connected)
