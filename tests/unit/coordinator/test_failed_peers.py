"""Rings that never form although all their members live: a smaller one trains meanwhile."""

import asyncio
import time

import pytest

from edl_horovod.coordinator.decide import Candidate
from edl_horovod.coordinator.settings import Timings
from edl_horovod.coordinator.workers import FailedPeers, Worker, suspects
from edl_horovod.job.events import EventLog


def part(*workers):
    """Let workers reach all others but each other: no ring forms that has two of them."""
    for worker in workers:

        def settle(worker=worker):
            others = [w for w in workers if w is not worker]
            if any(w.generation == worker.generation and not w.is_ready for w in others):
                for w in (worker, *others):
                    if w.generation == worker.generation and not w.is_ready:
                        w.ready()
            elif not worker.is_ready:
                type(worker).formed(worker)

        worker.formed = lambda settle=settle: asyncio.get_running_loop().call_later(0.05, settle)


def waits(job):
    return job.worker_states("waiting")


@pytest.mark.job(num_start=2, wanted={"a": 1, "b": 1})
async def test_of_two_hosts_that_cannot_reach_each_other_one_trains(job):
    first, second = job.fake(0, "a"), job.fake(0, "b")
    part(first, second)
    await first.connect()
    await second.connect()
    await job.ring(first)
    assert waits(job)[0].worker == "b:0"
    # It is tried again, and comes in once the network is mended.
    del first.formed, second.formed
    await job.ring(first, second)


@pytest.mark.job(num_start=3, wanted={"a": 1, "b": 1, "c": 1})
async def test_a_host_that_was_left_out_wrongly_comes_back_and_the_other_is_tried_ever_less(job):
    workers = [job.fake(0, host) for host in "abc"]
    part(*workers[:2])
    for worker in workers:
        await worker.connect()
    await job.ring(workers[0], workers[2])
    await job.hold(lambda: sum(not is_formed for _, is_formed in job.generations()) <= 8, 1.0)
    assert waits(job)[-1].worker == "b:0"


class Member(Worker):
    """A worker of which only the address matters."""

    @property
    def address(self):
        return f"10.0.0.{self.candidate.host}"


def two_members():
    """A proven member of a ring, and a newcomer."""
    return [
        Member(Candidate(worker=host, host=host, slot=0, order=order), is_ready=True, step=order)
        for order, host in enumerate("12")
    ]


def test_each_failure_in_a_row_holds_the_newcomer_back_for_twice_as_long(tmp_path):
    (first, second), waits = two_members(), []
    with EventLog(tmp_path / "events.jsonl", source="coordinator") as log:
        formings = FailedPeers(log, min_np=1, timings=Timings(held_back_seconds=10.0))
        for _ in range(5):
            formings.failed([first, second], ["1"], time.monotonic())
            waits.append(max(0.0, second.not_before - time.monotonic()))
    assert waits == pytest.approx([0, 10, 20, 40, 60], abs=4)


def test_each_wait_is_twice_the_one_before_however_little_the_failures_cost(tmp_path):
    (first, second), waits = two_members(), []
    with EventLog(tmp_path / "events.jsonl", source="coordinator") as log:
        formings = FailedPeers(log, min_np=1, timings=Timings())
        for cost in [2.0, 0.1, 0.1, 0.1, 0.1]:  # To find out who it is costs most.
            formings.failed([first, second], ["1"], time.monotonic() - cost)
            formings.formed([first], [first, second])
            waits.append(second.not_before - time.monotonic())
    assert [round(wait) for wait in waits] == [4, 8, 16, 32, 60]


def test_the_host_that_others_name_is_left_out_with_all_its_workers():
    places = [("1", 0), ("2", 0), ("2", 1), ("3", 0)]
    members = [
        Member(Candidate(worker=f"{host}:{slot}", host=host, slot=slot, order=order))
        for order, (host, slot) in enumerate(places)
    ]
    everybody = [member.name for member in members]
    assert suspects(members, everybody, min_np=1) == members[3:]
    members[0].unreached.add("10.0.0.2")
    assert suspects(members, everybody, min_np=1) == members[1:3]
    assert suspects(members, everybody, min_np=3) == members
    assert suspects(members, everybody[:3], min_np=1) == members[3:]
