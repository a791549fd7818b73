"""`--workers 3` runs the tests in processes that are forked from the one that collected them.

Collecting, and what is imported by then, is paid once; pytest-xdist would collect in each process.
A worker asks for a test when it is idle.
"""

import collections
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection, wait

import pytest
from _pytest.main import pytest_runtestloop as run_all_here
from _pytest.runner import pytest_sessionfinish as take_down_fixtures

from tests import shared, warm
from tests.forked import quiet_fork


def pytest_addoption(parser):
    """Add the option."""
    text = "fork this number of processes, which share the tests; 0 runs them in this process"
    parser.addoption("--workers", type=int, default=0, metavar="N", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Run the tests in workers, if there are to be any."""
    number = min(session.config.option.workers, len(session.items))
    if session.config.option.collectonly or session.testsfailed:
        return None
    has_jobs = warm.prepare(session.items)
    if number == 0:
        if has_jobs:
            warm.open_forker()
        return on_large_stack(run_all_here, session)
    # All workers make their tests' folders in the same one.
    session.config._tmp_path_factory.getbasetemp()
    with shared.keeping():
        _Run(session, number, has_jobs=has_jobs).run()
    return True


def on_large_stack(function, *args):
    """Call a function with room for all frames of Python below it.

    Python 3.11 to 3.13 keep frames in pieces of 16 KiB, and get and return a piece with each call
    that crosses the end of the last one. Copying settings at such a depth took eight times as long.
    """

    def call():
        return function(*args)

    # The piece of a frame is as large as the next power of two: 2 MiB, of which this needs half.
    call.__code__ = call.__code__.replace(co_stacksize=(1 << 17) + 1)
    return call()


class _Shares:
    """The tests that no worker has begun, by file."""

    def __init__(self, items):
        self._files = collections.OrderedDict[object, collections.deque[int]]()
        for index, item in enumerate(items):
            self._files.setdefault(item.path, collections.deque()).append(index)
        self._begun = dict[int, object]()

    def take(self, worker):
        """The index of a worker's next test; None if none is left.

        A worker stays with a file, whose tests may share what is costly to set up. Every other
        worker begins at the end, so that tests of different folders run side by side.
        """
        path = self._begun.get(worker)
        if path not in self._files:
            path = self._choose(from_end=bool(worker % 2))
        if path is None:
            return None
        self._begun[worker] = path
        tests = self._files[path]
        index = tests.popleft()
        if not tests:
            del self._files[path]
        return index

    def _choose(self, *, from_end):
        order = reversed(self._files) if from_end else self._files
        taken = set(self._begun.values())
        free = next((path for path in order if path not in taken), None)
        return free or max(self._files, key=lambda path: len(self._files[path]), default=None)


@dataclasses.dataclass
class _Worker:
    number: int
    pid: int
    index: int | None = None
    """The test that it runs."""


class _Run:
    """The workers of one run, from the side of the process that collected."""

    def __init__(self, session, number, *, has_jobs):
        self._has_jobs = has_jobs
        self._session, self._config = session, session.config
        self._shares = _Shares(session.items)
        self._workers = dict[Connection, _Worker]()
        self._number = number

    def run(self):
        """Hand out all tests, and report what became of them.

        Raises:
            Session.Failed, Session.Interrupted: As without workers, by `-x` for instance.
        """
        try:
            for number in range(self._number):
                self._fork(number)
            while self._workers:
                for connection in wait(list(self._workers)):
                    self._hear(connection)
        except BaseException:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGINT)
            raise
        finally:
            for connection, worker in self._workers.items():
                connection.close()
                os.waitpid(worker.pid, 0)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _fork(self, number):
        ours, theirs = multiprocessing.Pipe()
        pid = quiet_fork()
        if pid == 0:
            ours.close()
            for connection in self._workers:
                connection.close()
            _work(self._session, theirs, starts_jobs=self._has_jobs)
        theirs.close()
        self._workers[ours] = _Worker(number, pid)

    def _hear(self, connection):
        worker = self._workers[connection]
        try:
            kind, data = connection.recv()
        except EOFError:
            self._end(connection, worker)
            return
        hook = self._config.hook
        if kind == "report":
            hook.pytest_runtest_logreport(
                report=hook.pytest_report_from_serializable(config=self._config, data=data)
            )
            return
        if worker.index is not None:
            item = self._session.items[worker.index]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        worker.index = None if self._is_over() else self._shares.take(worker.number)
        with contextlib.suppress(OSError):  # It has died, as the end of its messages will tell.
            connection.send(worker.index)

    def _end(self, connection, worker):
        """Note the end of a worker; if a test ended it, that has failed, and another goes on."""
        del self._workers[connection]
        connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.index is None and code == 0:
            return
        place = ("worker", ("worker", None, "worker"))
        if worker.index is not None:
            item = self._session.items[worker.index]
            place = item.nodeid, item.location
        text = f"The process of the test ended with {code}."
        report = pytest.TestReport(*place, {}, "failed", text, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        if worker.index is not None and not self._is_over():
            self._fork(worker.number)

    def _is_over(self):
        return self._session.shouldfail or self._session.shouldstop


class _Next:
    """The test after the one that runs: asked for only when this one's fixtures are taken down."""

    def __init__(self, session, connection):
        self._session, self._connection = session, connection
        self._is_known, self._item = False, None

    def item(self):
        if not self._is_known:
            self._connection.send(("next", None))
            index = self._connection.recv()
            self._item = None if index is None else self._session.items[index]
            self._is_known = True
        return self._item

    def __bool__(self):
        return self.item() is not None

    def listchain(self):
        """What pytest compares with the fixtures that are there."""
        return self.item().listchain()


class _Sender:
    """Sends a worker's reports; a plugin."""

    def __init__(self, config, connection):
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report):
        """Send one."""
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def _run_tests(session, connection):
    following = _Next(session, connection)
    while (item := following.item()) is not None:
        following = _Next(session, connection)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _work(session, connection, *, starts_jobs):
    """Be a worker: run one test after the other, and end the process."""
    code = 1
    try:
        if starts_jobs:
            warm.open_forker()
        plugins = session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(_Sender(session.config, connection))
        # Its files would be shared with the other workers.
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        on_large_stack(_run_tests, session, connection)
        code = 0
    except BaseException as error:
        if not isinstance(error, (KeyboardInterrupt, EOFError)):
            traceback.print_exc()
        take_down_fixtures(session)
    finally:
        os._exit(code)
