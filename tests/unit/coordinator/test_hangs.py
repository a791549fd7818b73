"""Who hangs, and why: from what the workers say of themselves."""

from dataclasses import dataclass, field
from functools import partial

import pytest

from edl_horovod.coordinator.messages import Pong
from edl_horovod.coordinator.workers import Report, find_hung

QUICK = {"ping_seconds": 0.05, "dead_seconds": 0.6, "silence_seconds": 0.3}
STALL = 300.0
pytestmark = pytest.mark.job(timings=QUICK)


def report(doing, name, seconds, phase="step 7"):
    return Report(name, Pong(generation=2, doing=doing, phase=phase, seconds=seconds))


works, waits = partial(report, "works"), partial(report, "waits")
joins = partial(report, "joins", phase="forming generation 3")
unwatched = partial(report, "unwatched", phase="the result")


@dataclass(frozen=True)
class Case:
    name: str
    members: list = field(default_factory=list)
    outsiders: list = field(default_factory=list)
    ended: tuple = ()
    warned: tuple = ()


CASES = [
    Case("all get on", [works("a", 3), waits("b", 2)]),
    Case("one lets the other wait", [works("a", 301), waits("b", 300)], ended=("a",)),
    Case("not for long enough", [works("a", 400), waits("b", 299)]),
    Case("one that waits got on meanwhile", [works("a", 299), waits("b", 320)]),
    Case("a step that is long for all", [works("a", 900), works("b", 900)], warned=("a", "b")),
    Case("one of them is slower", [works("a", 900), works("b", 900), waits("c", 250)]),
    Case("two of three", [works("a", 300), waits("b", 400), works("c", 301)], ended=("a", "c")),
    Case("nobody to blame", [waits("a", 310), waits("b", 305), waits("c", 300)], ended=("c",)),
    Case("alone in a collective", [waits("a", 310)]),
    Case("one came late", [waits("a", 310), waits("b", 20)]),
    Case("alone", [works("a", 300)], warned=("a",)),
    Case("the result is written", [unwatched("a", 900), waits("b", 900)]),
    Case("one still joins", [joins("a", 900), waits("b", 900)]),
    Case("one has not told yet", [None, waits("b", 900)]),
    Case("left behind in its step", [waits("a", 1)], [works("b", 300)], ended=("b",)),
    Case("stuck in a forming", [waits("a", 1)], [joins("b", 300)], ended=("b",)),
    Case("not for long yet", [waits("a", 1)], [joins("b", 299)]),
    Case("all that is left of the job", [], [works("b", 900)]),
    Case("an outsider that has not told yet", [waits("a", 1)], [None]),
    Case("nobody"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_hangs(case):
    verdicts = find_hung(case.members, case.outsiders, stall_seconds=STALL)
    assert tuple(v.worker for v in verdicts if v.is_end) == case.ended
    assert tuple(v.worker for v in verdicts if not v.is_end) == case.warned


def test_the_verdict_says_what_why_and_for_how_long():
    hung = [works("a", 301, "examples of step 7"), waits("b", 300), waits("c", 300)]
    (verdict,) = find_hung(hung, [], stall_seconds=STALL)
    assert all(text in verdict.message for text in ("301 s", "examples of step 7", "2 others"))


def test_of_ranks_that_wait_in_different_collectives_the_first_that_differs_ends():
    ring = [waits("a", 310), waits("b", 305), waits("c", 303, "evaluation after step 7")]
    ring += [waits("d", 300)]
    (verdict,) = find_hung(ring, [], stall_seconds=STALL)
    assert (verdict.worker, verdict.is_end) == ("c", True)
    for text in ("4 ranks", "303 s", "in evaluation after step 7", "most in step 7"):
        assert text in verdict.message


def reports(worker, state, seconds):
    worker.report = {"doing": state, "phase": "step 7", "seconds": seconds}


def hung(job):
    hanging = job.worker_states("hung")
    assert all(event.seconds > 0 for event in hanging)
    return [(event.worker, event.pid) for event in hanging]


async def test_a_rank_that_lets_the_others_wait_is_told_to_end(job):
    first, second = await job.ring_of(0, 1)
    reports(first, "waits", 300)
    reports(second, "works", 301)
    await job.until(lambda: not second.is_connected)
    (message,) = [m for m in second.heard if m["kind"] == "end"]
    assert "1 other" in message["reason"]
    await job.ring(first)
    assert first.kinds().count("dump") == 1  # Each of its ring leaves its traces.
    assert hung(job) == [("localhost:1", second.pid)]


@pytest.mark.job(forming_seconds=0.1)
async def test_one_that_does_not_end_is_said_to_hang_once_and_never_invited(job):
    first, second = await job.ring_of(0, 1)
    second.ignores |= {"end", "change"}
    reports(first, "waits", 300)
    reports(second, "works", 301)
    await job.until(lambda: "end" in second.kinds())
    reports(first, "unwatched", 0)
    first.ready()  # As when the collective breaks.
    await job.ring(first)
    second.ready()
    third = await job.worker(2)
    await job.ring(first, third)
    assert len(hung(job)) == second.kinds().count("end") == 1


async def test_what_was_said_of_an_earlier_ring_counts_no_more(job):
    first, second = await job.ring_of(0, 1)
    third = await job.worker(2)
    await job.ring(first, second, third)
    for worker in (first, second, third):
        reports(worker, "waits", 300)
        worker.report["generation"] = 1
    num_pings = first.num_pings
    await job.hold(lambda: not hung(job), 0.3)
    assert first.num_pings > num_pings + 1


async def test_one_that_nobody_waits_for_is_asked_once_where_it_is(job):
    (first,) = await job.ring_of(0)
    reports(first, "works", 301)
    await job.until(lambda: "dump" in first.kinds())
    number = len(first.heard)
    second = await job.worker(1)
    await job.ring(first, second)
    assert first.kinds()[:number].count("dump") == 1
    assert not hung(job)
    (event,) = job.events("log")
    assert "localhost:0" in event.message
    assert "step 7" in event.message


async def test_a_silent_member_is_said_to_hang_once_the_ring_goes_on_without_it(job):
    first, second = await job.ring_of(0, 1)
    second.ignores |= {"ping", "change"}
    await job.ring(first, least_generation=2)
    await job.until(lambda: hung(job))
    assert hung(job) == [("localhost:1", second.pid)]
    # Stopped for long, but not killed: it may come back.
    second.ignores.clear()
    second.ready()
    await job.ring(first, second)


@pytest.mark.job(wait_seconds=60.0)
async def test_the_only_member_is_waited_for_however_silent(job):
    (first,) = await job.ring_of(0)
    first.ignores |= {"ping", "change"}
    await job.until(lambda: any(e.state == "waiting" for e in job.events("job")))
    num_unanswered = 1.2 / job.settings.timings.ping_seconds
    num_pings = first.num_pings
    await job.until(lambda: first.num_pings > num_pings + num_unanswered)
    assert not hung(job)
    first.ignores.clear()
    first.ready()
    await job.ring(first)
