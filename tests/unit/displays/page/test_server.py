"""One snapshot at a time, however many readers ask and however long it takes."""

import asyncio
import gc
import json
import re
import threading
import time
import weakref
from dataclasses import replace
from typing import ClassVar

import pytest
from starlette.applications import Starlette

from edl_horovod.displays.page import server
from edl_horovod.displays.page.folder import Folder, ListedJob
from edl_horovod.displays.page.server import Latest, Pages
from edl_horovod.displays.page.snapshot import JobSnapshot
from edl_horovod.errors import ClusterUnreachable, ConfigError, ObjectNotFound
from edl_horovod.job.account import Account
from edl_horovod.job.state import JobState


def latest_of(take, seconds=0.0, **options):
    """Each reader has a look of its own, unless looks are some seconds apart."""
    first = JobSnapshot(time=0.0)
    return Latest(
        take, first, lambda look, _: replace(look, problem="late"), seconds=seconds, **options
    )


async def answer_of(app, path):
    """Status and text of the answer to a request for a path."""
    status, body = 0, b""

    async def send(message):
        nonlocal status, body
        status, body = message.get("status", status), body + message.get("body", b"")

    about = {"path": path, "query_string": b"", "headers": []}
    await app({"type": "http", "method": "GET", **about}, None, send)
    return status, body.decode()


def answers_of(source, *paths):
    """The answers to requests that come one after the other."""

    async def read():
        app = Starlette(routes=Pages(source).routes())
        return [await answer_of(app, path) for path in paths]

    return asyncio.run(read())


def folder_of(open_source, elsewhere=None):
    """A folder with one job, `m`."""
    return Folder("f", lambda: ["m"], lambda _: open_source(), elsewhere or {})


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

    overview = snapshot


def test_first_requests_for_a_job_of_a_folder_share_one_reader():
    source = CountedSource()
    app = Starlette(routes=Pages(folder_of(lambda: source)).routes())

    async def read():
        return await asyncio.gather(*(answer_of(app, "/job/m/status.json") for _ in range(3)))

    assert [status for status, _ in asyncio.run(read())] == [200, 200, 200]
    assert source.num_looks == 1


def test_what_was_shown_of_a_job_is_forgotten_when_its_page_is_closed(monkeypatch):
    monkeypatch.setattr(server, "PAGE_SECONDS", 0.0)
    shown = []

    class Watched(CountedSource):
        def snapshot(self):
            snapshot = super().snapshot()
            shown.append(weakref.ref(snapshot))
            return snapshot

    answers_of(folder_of(Watched), "/job/m/", "/")
    gc.collect()

    assert [ref() for ref in shown] == [None]


def test_a_job_that_is_read_for_long_keeps_no_other_job_waiting():
    slow = CountedSource()
    slow.may_end.clear()
    folder = folder_of(lambda: slow)
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


@pytest.fixture
def hanging():
    """Lists the jobs of a place that does not answer until the test is over."""
    may_go_on = threading.Event()

    def list_jobs() -> tuple[()]:
        may_go_on.wait(60)
        return ()

    yield list_jobs
    may_go_on.set()


def jobs_of(name):
    """Lists one job of a place that answers at once."""
    return lambda: [ListedJob(name, JobSnapshot(time=1.0, state=JobState()), CountedSource)]


LINKS = ('href="/job/m/"', 'href="/job/near%3An/"')


def list_pages(elsewhere, count=1):
    """The page of all jobs, some times in turn: those elsewhere, and one below a folder."""
    answers = answers_of(folder_of(CountedSource, elsewhere), *["/"] * count)
    return [text for _, text in answers]


def test_a_list_of_jobs_elsewhere_that_takes_long_hides_no_other_job(monkeypatch, hanging):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.5)
    elsewhere = {"far": hanging, "near": jobs_of("n")}

    (page,) = list_pages(elsewhere)

    assert all(part in page for part in (*LINKS, 'role="alert"'))


def test_a_list_of_jobs_elsewhere_that_takes_long_is_waited_for_once(monkeypatch, hanging):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.5)
    began = time.monotonic()

    pages = list_pages({"far": hanging}, count=20)

    assert time.monotonic() - began < 20 * 0.5 / 2
    for page in pages:
        assert 'href="/job/m/"' in page
        assert 'role="alert"' in page


def test_a_place_whose_command_does_not_start_is_told_beside_the_other_jobs():
    def refuse():
        raise PermissionError(13, "Permission denied", "squeue")

    (page,) = list_pages({"far": refuse, "near": jobs_of("n")})

    assert all(part in page for part in (*LINKS, "Permission denied"))


def test_who_waits_long_gets_the_look_before(monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    may_go_on = threading.Event()
    answers = [JobSnapshot(time=float(n), state=JobState(step=n)) for n in (1, 2)]

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


def test_who_does_not_wait_for_slow_looks_gets_the_newest_that_has_ended(monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.5)
    may_end = threading.Semaphore(0)
    snapshots = iter([JobSnapshot(time=1.0), JobSnapshot(time=2.0)])

    def snapshot() -> JobSnapshot:
        assert may_end.acquire(timeout=30)
        return next(snapshots)

    async def read() -> tuple[JobSnapshot, list[JobSnapshot], float]:
        newest = latest_of(snapshot, is_often_slow=True)
        missing = await newest.get()
        may_end.release()
        while (await newest.get()).time == 0.0:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        shown = [await newest.get() for _ in range(20)]
        took = time.monotonic() - began
        may_end.release()
        return missing, shown, took

    missing, shown, took = asyncio.run(asyncio.wait_for(read(), 30))

    assert (missing.time, missing.problem) == (0.0, "late")
    assert {look.time for look in shown} == {1.0}
    assert shown[0].problem == ""
    assert took < 20 * 0.5 / 2


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


def test_jobs_of_a_list_that_takes_long_are_up_until_it_is_old(monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.2)
    source = CountedSource()
    folder = folder_of(lambda: source)
    folder.look_seconds = 0.0
    app = Starlette(routes=Pages(folder).routes())

    async def read():
        texts = [(await answer_of(app, "/metrics"))[1]]
        source.may_end.clear()
        texts.append((await answer_of(app, "/metrics"))[1])
        monkeypatch.setattr(server, "MAX_AGE_SECONDS", 0.0)
        texts += [(await answer_of(app, path))[1] for path in ("/metrics", "/")]
        source.may_end.set()
        return texts

    *metrics, page = asyncio.run(read())

    up = [re.findall(r"^edl_up\{.*\} (.*)$", text, re.MULTILINE) for text in metrics]
    assert up == [["1.0"], ["1.0"], ["0.0"]]
    assert 'role="alert"' in page


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ObjectNotFound("Slurm has no job 7."), 404),
        (ConfigError("Job 7 has no directory."), 404),
        (ClusterUnreachable("Slurm does not answer."), 503),
    ],
)
def test_a_job_elsewhere_that_cannot_be_opened_says_why(error, status):
    def refuse():
        raise error

    job = ListedJob("7", JobSnapshot(time=1.0, state=JobState()), refuse)
    folder = Folder("f", lambda: [], lambda _: CountedSource(), {"far": lambda: [job]})

    assert answers_of(folder, "/job/far:7/") == [(status, str(error))]


class WatchedAccount(Account):
    """Notes which threads write it for programs."""

    threads: ClassVar[list[threading.Thread]] = []

    def for_programs(self):
        self.threads.append(threading.current_thread())
        return super().for_programs()


def test_the_status_of_a_job_is_written_in_a_thread():
    source = CountedSource()
    source.snapshot = lambda: JobSnapshot(time=0.0, state=JobState(account=WatchedAccount()))

    ((_, text),) = answers_of(source, "/status.json")

    assert json.loads(text)["account"] == {"goodput": None, "seconds": {}, "ranks": []}
    assert len(WatchedAccount.threads) == 1
    assert threading.main_thread() not in WatchedAccount.threads
