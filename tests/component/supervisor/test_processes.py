"""Children end with their launcher, whatever ends it, and so does what they started."""

import os
import signal
import sys
import threading

import pytest

from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import Child, end_all, signals_held
from tests.waiting import is_running, wait_until

LIMIT_SECONDS = 8.0
SLEEP = "print('up', flush=True); input()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
LIFELINE = "from edl_horovod.job.lifeline import end_with_parent; end_with_parent(); " + SLEEP
WITH_GRANDCHILD = (
    "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); "
)


def python(code, **environment):
    return Command(argv=(sys.executable, "-S", "-c", code), environment=environment)


@pytest.fixture
def start(tmp_path):
    children = []

    def start(code, **environment):
        child = Child(python(code), tmp_path / "child.log", **environment)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


def test_the_exit_code_and_the_log_are_kept(start):
    child = start("import os; print(os.environ['EDL_SLOT']); raise SystemExit(7)", EDL_SLOT="5")
    assert child.wait(LIMIT_SECONDS)
    assert child.exit_code == 7
    assert child.tail() == "5"


def test_a_log_is_appended_and_its_tail_is_short(start, tmp_path):
    (tmp_path / "child.log").write_text("before\n")
    child = start("for n in range(100): print(n)")
    assert child.wait(LIMIT_SECONDS)
    assert child.tail(2) == "98\n99"
    assert (tmp_path / "child.log").read_text().startswith("before\n0\n")


def test_waiting_for_one_that_runs_ends(start):
    child = start(SLEEP)
    assert not child.wait(0.01)
    assert child.exit_code is None


def test_a_missing_program_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        Child(Command(argv=("/no/such/program",)), tmp_path / "log")


def test_all_are_asked_first_and_the_stubborn_are_killed(start):
    polite, stubborn = start(SLEEP), start(STUBBORN)
    wait_until(lambda: polite.tail().count("up") == 2)
    end_all([polite, stubborn], seconds=0.2)
    assert polite.exit_code == -signal.SIGTERM
    assert stubborn.exit_code == -signal.SIGKILL


def test_a_second_interrupt_ends_the_waiting_and_leaves_nothing_behind(start):
    stubborn = start(STUBBORN)
    wait_until(lambda: "up" in stubborn.tail())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        end_all([stubborn], seconds=LIMIT_SECONDS)
    assert stubborn.exit_code == -signal.SIGKILL


def test_closing_kills_also_what_the_child_started(start):
    child = start(WITH_GRANDCHILD + "input()")
    wait_until(lambda: child.tail().strip().isdigit())
    grandchild = int(child.tail())
    child.close()
    wait_until(lambda: not is_running(grandchild))


def test_what_an_ended_child_started_is_killed(start):
    child = start(WITH_GRANDCHILD + "raise SystemExit(3)")
    assert child.wait(LIMIT_SECONDS)
    assert child.exit_code == 3
    grandchild = int(child.tail())
    wait_until(lambda: not is_running(grandchild))


def test_closing_twice_and_signalling_the_dead_are_nothing(start):
    child = start("")
    assert child.wait(LIMIT_SECONDS)
    child.send(signal.SIGTERM)
    child.close()
    child.close()
    assert child.exit_code == 0


def test_signals_wait_while_they_are_held_whichever_thread_takes_them():
    done = []
    idle = threading.Event()
    threading.Thread(target=idle.wait, daemon=True).start()

    def hold():
        with signals_held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the block")

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert done == ["the block"]
    idle.set()


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path, ends_with_its_launcher):
    code = (
        "from pathlib import Path\n"
        "from tests.component.supervisor.test_processes import *\n"
        "command = Command(argv=(sys.executable, '-c', LIFELINE))\n"
        f"log = Path({str(tmp_path)!r}, 'child.log')\n"
        "children = [Child(command, log) for _ in range(2)]\n"
        "wait_until(lambda: log.read_text().count('up') == 2)\n"
        "print(*[child.pid for child in children], flush=True)"
    )
    ends_with_its_launcher(code, 2)
