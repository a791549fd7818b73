"""One snapshot at a time, however many readers ask and however long it takes."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from edl_horovod.displays.page import server
from edl_horovod.displays.page.server import Latest
from edl_horovod.displays.page.snapshot import JobSnapshot
from edl_horovod.job.state import JobState


def latest_of(take, seconds=0.0):
    """Each reader has a look of its own, unless looks are some seconds apart."""
    first = JobSnapshot(time=0.0)
    return Latest(take, first, lambda it, _: replace(it, problem="late"), seconds=seconds)


def test_many_readers_share_one_look():
    snapshots: list[JobSnapshot] = []

    def snapshot() -> JobSnapshot:
        snapshots.append(JobSnapshot(time=time.time()))
        return snapshots[-1]

    async def read() -> list[JobSnapshot]:
        newest = latest_of(snapshot, seconds=1.0)
        return await asyncio.gather(*(newest.get() for _ in range(20)))

    assert set(map(id, asyncio.run(read()))) == {id(snapshots[0])}
    assert len(snapshots) == 1


def test_who_waits_long_gets_the_look_before(monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    may_go_on = threading.Event()
    answers = [
        JobSnapshot(time=1.0, state=JobState(step=1)),
        JobSnapshot(time=2.0, state=JobState(step=2)),
    ]

    def snapshot() -> JobSnapshot:
        if len(answers) == 1:
            may_go_on.wait()
        return answers.pop(0)

    async def read() -> list[JobSnapshot]:
        newest = latest_of(snapshot)
        got = [await newest.get(), await newest.get()]
        may_go_on.set()
        return [*got, await newest.get()]

    first, late, second = asyncio.run(read())

    assert first.problem == ""
    assert (late.problem, late.state) == ("late", first.state)
    assert (second.problem, second.time) == ("", 2.0)


def test_a_mistake_of_ours_is_told_and_the_next_look_is_taken():
    answers = [ZeroDivisionError(), JobSnapshot(time=2.0)]

    def snapshot() -> JobSnapshot:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read() -> JobSnapshot:
        newest = latest_of(snapshot)
        with pytest.raises(ZeroDivisionError):
            await newest.get()
        return await newest.get()

    assert asyncio.run(read()).time == 2.0
