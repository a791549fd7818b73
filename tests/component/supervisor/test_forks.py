"""Workers that are forked: like those that are started, and none the worse for the server's end."""

import ctypes
import dataclasses
import os
import signal
import sys
import threading

import pytest

from edl_horovod.job.events import EventLog
from edl_horovod.supervisor import forks
from edl_horovod.supervisor.forks import ForkServer, WarmServer
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import Child, end_all
from edl_horovod.supervisor.slots import Slots
from tests.programs import REPOSITORY
from tests.waiting import is_running, wait_until

LIMIT_SECONDS = 8.0
SERVE = "import os, signal, socket, sys; from edl_horovod.job import lifeline; "
SERVE += "from edl_horovod.worker import __main__ as worker; "
SERVE += "worker.serve(socket.socket(fileno=int(sys.argv[2]))); "
NEXT = SERVE.replace("worker.serve", "command = worker.serve").replace(
    "sys.argv[2]", "sys.argv[sys.argv.index('--fork-server') + 1]"
)
LIFELINE = "lifeline.end_with_parent(); "
SLEEP = LIFELINE + "print('up', flush=True); signal.pause()"
PR_GET_CHILD_SUBREAPER = 37


class Workers:
    """Children of one program, `code`, after the words that make it a server."""

    def __init__(self, folder, code, *, before=SERVE):
        self.folder = folder
        argv = (sys.executable, "-c", before + code)
        self.command = Command(
            argv=argv, environment={"PYTHONPATH": str(REPOSITORY)}, can_fork=True
        )
        self.server = ForkServer(self.command, folder / "forks.log")
        self.children = []

    def ready(self):
        wait_until(self.server.is_ready)
        return self

    def start(self, **variables):
        log_path = self.folder / f"worker-{len(self.children)}.log"
        child = Child(self.command, log_path, start=self.server.start, **variables)
        self.children.append(child)
        return child

    @property
    def server_pid(self):
        return self.server.children[0].pid


def exit_code_of(child):
    assert child.wait(LIMIT_SECONDS)
    return child.exit_code


@pytest.fixture
def make(tmp_path):
    created = []

    def make(code, **before):
        created.append(Workers(tmp_path, code, **before))
        return created[-1]

    yield make
    for workers in created:
        end_all([*workers.children, *workers.server.children])


def test_a_worker_has_its_variables_its_log_and_its_exit_code(make):
    workers = make("print(os.environ['EDL_SLOT']); sys.stderr.write('!'); sys.exit(7)").ready()
    (workers.folder / "worker-0.log").write_text("before\n")
    for slot in ("0", "1"):
        child = workers.start(EDL_SLOT=slot)
        assert exit_code_of(child) == 7
        assert sorted(child.tail().replace("before\n", "").replace("\n", "")) == ["!", slot]
    assert (workers.folder / "worker-0.log").read_text().startswith("before\n")
    assert (workers.folder / "forks.log").read_text() == ""


def test_a_worker_is_a_child_of_its_launcher_and_leads_a_session(make):
    child = make("print(os.getppid(), os.getsid(0), flush=True); signal.pause()").ready().start()
    wait_until(child.tail)
    assert child.tail() == f"{os.getpid()} {child.pid}"
    assert not child.wait(0.01)
    assert child.exit_code is None


def test_a_killed_worker_is_seen_with_its_signal_and_what_it_started_ends(make):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); "
    child = make(code + "signal.pause()").ready().start()
    grandchild = int(wait_until(child.tail))
    os.kill(child.pid, signal.SIGKILL)
    assert exit_code_of(child) == -signal.SIGKILL
    wait_until(lambda: not is_running(grandchild))


def test_sigterm_is_sent_and_the_dead_are_left_alone(make):
    child = make(SLEEP).ready().start()
    wait_until(lambda: child.tail() == "up")
    child.send(signal.SIGTERM)
    assert exit_code_of(child) == -signal.SIGTERM
    child.send(signal.SIGTERM)
    child.close()
    child.close()


def test_workers_share_no_file_of_each_other_or_of_the_server(make):
    workers = make("print(len(os.listdir('/proc/self/fd')), flush=True); signal.pause()").ready()
    counts = {wait_until(workers.start().tail) for _ in range(3)}
    # The three standard ones, and the folder that is being listed.
    assert counts == {"4"}


def test_workers_live_on_when_their_server_is_killed_and_another_one_forks_the_next(make):
    workers = make(SLEEP).ready()
    first = workers.start()
    killed = workers.server_pid
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_running(killed))
    second = workers.ready().start()
    assert workers.server_pid != killed
    wait_until(lambda: [child.tail() for child in (first, second)] == ["up", "up"])
    first.send(signal.SIGTERM)
    assert exit_code_of(first) == -signal.SIGTERM


def test_a_server_that_hangs_is_killed_and_the_worker_started_from_nothing(
    make, monkeypatch, caplog
):
    monkeypatch.setattr(forks, "ANSWER_SECONDS", 0.3)
    before = "import sys; '--fork-server' not in sys.argv and (print('cold'), sys.exit(3)); "
    workers = make(SLEEP, before=before + SERVE).ready()
    stopped = workers.server_pid
    os.kill(stopped, signal.SIGSTOP)
    child = workers.start()
    assert (exit_code_of(child), child.tail()) == (3, "cold")
    assert "forked" in caplog.text
    assert not is_running(stopped)


def test_where_nothing_can_be_imported_each_worker_says_so_itself(make, caplog):
    workers = make("", before="import no_such_package").ready()
    assert "'no_such_package'" in caplog.text
    assert workers.server.children == []
    child = workers.start()
    assert exit_code_of(child) == 1
    assert "such_package" in child.tail()


def test_slots_fork_their_workers_and_the_successors_of_the_lost(make, tmp_path):
    command = make(SLEEP).command
    with EventLog(tmp_path / "events.jsonl", "launcher") as log:
        slots = Slots(command, tmp_path, log, backoff_seconds=1.0)
        slots.num_wanted = 2

        def are_there(*, without):
            slots.keep()
            return len(slots.children) == 2 and without not in [c.pid for c in slots.children]

        try:
            wait_until(lambda: are_there(without=None))
            server, first = slots.processes[2].pid, slots.children[0].pid
            os.kill(server, signal.SIGKILL)
            # One that dies while it is asked has no successor until another worker is wanted.
            wait_until(lambda: not is_running(server))
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: are_there(without=first))
            assert slots.processes[2].pid != server
        finally:
            end_all(slots.processes)
    assert not any(is_running(child.pid) for child in slots.processes)


def run_job(make, warm, *words, **environment):
    """What a worker of one job prints, and the pid of what forked it."""
    workers = make("print(os.environ['EDL_SLOT'], command[3:], flush=True)", before=NEXT)
    base = workers.command
    argv, variables = (*base.argv, *words), {**base.environment, **environment}
    workers.command = dataclasses.replace(base, argv=argv, environment=variables)
    workers.server = ForkServer(workers.command, workers.folder / "forks.log", warm)
    child = workers.ready().start(EDL_SLOT="0")
    assert child.wait(LIMIT_SECONDS)
    pid = workers.server_pid
    printed = child.tail()
    child.log_path.unlink()
    workers.server.leave()
    return printed, pid


def test_the_next_job_forks_its_workers_from_the_server_of_the_last(make):
    with WarmServer() as warm:
        first, server = run_job(make, warm, "a", TMPDIR="/tmp/a")
        second, same = run_job(make, warm, "b", TMPDIR="/tmp/b")
        assert (first, second) == ("0 ['a']", "0 ['b']")
        assert same == server
        _, other = run_job(make, warm, "b", OMP_NUM_THREADS="3")
        assert other != server
        assert not is_running(server)
        os.kill(other, signal.SIGKILL)
        wait_until(lambda: not is_running(other))
        _, third = run_job(make, warm, "b", OMP_NUM_THREADS="3")
        assert is_running(third)
    assert not is_running(third)


def test_a_server_that_no_job_wants_ends(make, monkeypatch):
    monkeypatch.setattr(forks, "IDLE_SECONDS", 0.1)
    with WarmServer() as warm:
        _, server = run_job(make, warm, "a")
        wait_until(lambda: not is_running(server))
        assert run_job(make, warm, "a")[0] == "0 ['a']"


def test_nothing_is_taken_in_that_others_orphan(make):
    child = make(SLEEP).ready().start()
    is_subreaper = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper), 0, 0, 0)
    assert is_subreaper.value == 0
    assert is_running(child.pid)


@pytest.mark.long
def test_jobs_in_several_threads_have_their_own_workers(make, tmp_path):
    codes = []

    def run(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        workers = Workers(folder, "sys.exit(int(os.environ['CODE']))").ready()
        for code in range(10):
            child = workers.start(CODE=str(code))
            codes.append(exit_code_of(child) == code)
        end_all([*workers.children, *workers.server.children])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [True] * 30


def test_without_a_log_file_a_worker_prints_where_its_launcher_does(make, capfd):
    workers = make("print(os.environ['EDL_SLOT'], flush=True); sys.stderr.write('!')").ready()
    child = Child(workers.command, None, start=workers.server.start, EDL_SLOT="3")
    workers.children.append(child)
    assert (exit_code_of(child), child.tail()) == (0, "")
    assert capfd.readouterr().out == "3\n!"


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path, ends_with_its_launcher):
    code = (
        "from pathlib import Path\n"
        "from tests.component.supervisor.test_forks import *\n"
        f"workers = Workers(Path({str(tmp_path)!r}), SLEEP).ready()\n"
        "pids = [workers.start().pid for _ in range(2)]\n"
        "wait_until(lambda: [child.tail() for child in workers.children] == ['up', 'up'])\n"
        "print(workers.server_pid, *pids, flush=True)"
    )
    ends_with_its_launcher(code, 3)
