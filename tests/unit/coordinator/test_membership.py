"""Membership at its edges: changes that meet, repeat, or ask for what cannot be."""

import asyncio

import pytest


async def test_two_changes_at_once_make_one_ring(job):
    workers = await job.ring_of(0, 1)
    third, fourth = await asyncio.gather(job.worker(2), job.worker(3))
    await job.ring(*workers, third, fourth)
    assert job.saved()["generation"] <= 3


async def test_a_change_while_the_ring_forms_is_made_next(job):
    first, second = await job.forming_ring_of(0, 1)
    third = await job.worker(2)
    await job.read_hosts(localhost=1)
    await job.read_hosts(localhost=3)
    first.formed()
    second.formed()
    await job.ring(first, second, third)
    assert job.generations() == [(2, True), (3, True)]


@pytest.mark.job(timings={"forming_ping_seconds": 0.05}, forming_seconds=60.0)
async def test_a_member_that_is_stopped_while_the_ring_forms_is_left_behind_soon(job):
    (first,) = await job.ring_of(0)
    first.ignores = {"form"}
    second = await job.worker(1, ignores=["form", "change"])
    await job.until(lambda: second.place is not None)
    second.ignores.add("ping")
    await job.until(lambda: len(job.generations()) == 2)
    assert job.generations()[1] == (2, False)
    assert second.is_connected
    first.ignores = set()
    first.ready()
    await job.ring(first)


async def test_several_members_die_at_once_the_leader_among_them(job):
    workers = await job.ring_of(0, 1, 2, 3)
    for worker in workers[:3]:
        worker.hang_up()
    await job.ring(workers[3])


@pytest.mark.job(wanted={"a": 1, "b": 1, "c": 1, "d": 1}, max_np=3)
async def test_a_member_is_lost_and_another_withdrawn_and_a_third_comes_in_one_ring(job):
    first, second, third = await job.ring_of("a", "b", "c")
    for worker in (first, third):
        worker.ignores = {"change"}  # In a long step.
    fourth = await job.worker(0, "d")
    second.hang_up()
    await job.read_hosts(a=1, c=1, d=1)
    await job.until(lambda: "change" in first.kinds())
    first.ready()
    third.ready()
    await job.ring(first, third, fourth)
    assert [size for size, _ in job.generations()] == [3, 3]


@pytest.mark.job(wanted={"a": 1, "b": 1})
async def test_a_host_that_flaps_disturbs_only_itself(job):
    first, second = await job.ring_of("a", "b")
    for number in range(20):
        await job.read_hosts(**({"a": 1} if number % 2 == 0 else {"a": 1, "b": 1}))
    third = second if second.is_connected else await job.worker(0, "b")
    await job.ring(first, third)
    assert "stop" not in first.kinds()
    assert all(is_formed for _, is_formed in job.generations())


@pytest.mark.job(wanted={"a": 1, "b": 1})
async def test_a_host_name_that_comes_back_with_another_machine_is_a_new_worker(job):
    first, second = await job.ring_of("a", "b")
    # Its old connection is still open: nobody closes that of a machine that is gone.
    second.ignores = {"ping", "change"}
    successor = await job.worker(0, "b")
    await job.until(lambda: len(job.events("worker")) == 3)
    assert successor.place is None
    first.ready()  # The collective broke.
    await job.ring(first, successor)
    assert "stop" not in successor.kinds()


@pytest.mark.job(num_start=4, max_np=2)
async def test_workers_beyond_max_np_wait_warm_and_follow(job):
    workers = [await job.worker(slot) for slot in range(4)]
    await job.ring(*workers[:2])
    assert all(w.place is None and w.is_connected for w in workers[2:])
    workers[0].hang_up()
    await job.ring(workers[1], workers[2])
    assert job.generations() == [(2, True)] * 2


@pytest.mark.job(min_np=2)
async def test_a_ring_goes_below_min_np_and_above_again_and_the_wait_is_told_each_time(job):
    first, second = await job.ring_of(0, 1)
    for number in (1, 2):
        second.hang_up()
        await job.until(lambda number=number: len(job.events("job")) == number)
        assert "2 needed" in job.events("job")[-1].message
        assert first.is_ready
        second = await job.worker(1)
        await job.ring(first, second, least_generation=number + 1)


async def test_all_members_leave_and_one_comes_back(job):
    first, second = await job.ring_of(0, 1)
    first.send("leaving")
    second.send("leaving")
    await job.until(lambda: not first.is_connected and not second.is_connected)
    await job.until(lambda: job.events("job"))
    await job.ring_of(0)


@pytest.mark.job(timings={"forming_margin_seconds": 0.1}, forming_seconds=0.2)
async def test_a_member_that_hangs_in_a_forming_costs_one_time_out(job):
    (first,) = await job.ring_of(0)
    first.ignores = {"form"}
    second = await job.worker(1, ignores=["form", "change"])
    await job.until(lambda: second.place is not None and first.place["size"] == 2)
    first.ignores = set()
    first.ready()  # As after Gloo's time-out.
    await job.ring(first, least_generation=3)
    assert not any(size == 2 and is_formed for size, is_formed in job.generations())
    second.ready()  # It goes on after all.
    second.ignores = set()
    await job.ring(first, second)
