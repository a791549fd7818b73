"""One look at a time, however many ask and however long it takes."""

import asyncio
import threading
import time

import pytest

from edl_horovod.displays.page import server
from edl_horovod.displays.page.look import Look
from edl_horovod.displays.page.server import Latest
from edl_horovod.job.state import JobState


def test_many_readers_share_one_look():
    looks: list[Look] = []

    def look() -> Look:
        looks.append(Look(time=time.time()))
        return looks[-1]

    async def read() -> list[Look]:
        newest = Latest(look)
        return await asyncio.gather(*(newest.get() for _ in range(20)))

    assert set(map(id, asyncio.run(read()))) == {id(looks[0])}
    assert len(looks) == 1


def test_who_waits_long_gets_the_look_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.05)
    may_go_on = threading.Event()
    answers = [Look(time=1.0, state=JobState(step=1)), Look(time=2.0, state=JobState(step=2))]

    def look() -> Look:
        if len(answers) == 1:
            may_go_on.wait()
        return answers.pop(0)

    async def read() -> list[Look]:
        newest = Latest(look)
        got = [await newest.get(), await newest.get()]
        may_go_on.set()
        monkeypatch.setattr(server, "PATIENCE_SECONDS", 60.0)
        return [*got, await newest.get()]

    first, late, second = asyncio.run(read())

    assert (first.http_status, first.trouble) == (200, "")
    assert (late.http_status, late.state) == (503, first.state)
    assert "has not answered for 0 s" in late.trouble
    assert (second.http_status, second.time) == (200, 2.0)


def test_a_mistake_of_ours_is_told_and_the_next_look_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "LEAST_SECONDS", 0.0)
    answers = [ZeroDivisionError(), Look(time=2.0)]

    def look() -> Look:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read() -> Look:
        newest = Latest(look)
        with pytest.raises(ZeroDivisionError):
            await newest.get()
        return await newest.get()

    assert asyncio.run(read()).time == 2.0
