"""One snapshot at a time, however many readers ask and however long it takes."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest
from starlette.applications import Starlette

from edl_horovod.displays.page import server
from edl_horovod.displays.page.folder import Folder
from edl_horovod.displays.page.server import Latest, Pages
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


class CountedSource:
    """A job whose looks are counted, and may have to wait."""

    name = "m"
    look_seconds = 60.0

    def __init__(self) -> None:
        self.num_looks = 0
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def snapshot(self) -> JobSnapshot:
        self.num_looks += 1
        self.has_begun.set()
        assert self.may_end.wait(30)
        return JobSnapshot(time=time.time(), state=JobState())


def test_first_requests_for_a_job_of_a_folder_share_one_reader():
    source = CountedSource()
    pages = Pages(Folder("f", find=lambda: ["m"], open_source=lambda _: source))
    app = Starlette(routes=pages.routes())
    statuses = []

    async def send(message):
        statuses.extend([message["status"]] if "status" in message else [])

    async def read():
        about = {"path": "/job/m/status.json", "query_string": b"", "headers": []}
        scopes = [{"type": "http", "method": "GET", **about} for _ in range(3)]
        await asyncio.gather(*(app(scope, None, send) for scope in scopes))

    asyncio.run(read())

    assert statuses == [200, 200, 200]
    assert source.num_looks == 1


def test_a_job_that_is_read_for_long_keeps_no_other_job_waiting():
    slow = CountedSource()
    slow.may_end.clear()
    folder = Folder("f", find=lambda: ["m"], open_source=lambda _: slow)
    looking = threading.Thread(target=folder.snapshot)
    looking.start()
    assert slow.has_begun.wait(30)

    asking = threading.Thread(target=folder.source, args=["m"])
    asking.start()
    asking.join(30)
    is_answered = not asking.is_alive()
    slow.may_end.set()
    looking.join()

    assert is_answered


def test_a_list_of_jobs_elsewhere_that_takes_long_hides_no_job_of_the_folder(monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    may_go_on = threading.Event()

    def elsewhere() -> tuple[()]:
        may_go_on.wait(30)
        return ()

    pages = Pages(Folder("f", lambda: ["m"], lambda _: CountedSource(), {"far": elsewhere}))
    app = Starlette(routes=pages.routes())
    bodies = []

    async def send(message):
        bodies.append(message.get("body", b""))

    async def read():
        about = {"path": "/", "query_string": b"", "headers": []}
        scope = {"type": "http", "method": "GET", **about}
        await app(scope, None, send)

    asyncio.run(read())
    may_go_on.set()

    page = b"".join(bodies).decode()
    assert 'href="/job/m/"' in page
    assert 'role="alert"' in page


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
