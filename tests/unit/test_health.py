"""Programs of checks end with their time, with all that they have started."""

import os
import signal
import sys

import pytest

from edl_horovod.health import Programs
from tests.waiting import is_running, wait_until

STUBBORN = """
import os, signal, sys, time
is_other_session = sys.argv[1] == "other session"
if os.fork() == 0:
    if is_other_session:
        os.setsid()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("pid.new", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename("pid.new", "pid")
time.sleep(600)
"""


@pytest.mark.further
def test_a_process_that_ignores_sigterm_does_not_outlive_its_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Programs().run([sys.executable, "-c", STUBBORN, "same session"], seconds=3) is None
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid))


@pytest.mark.timeout(30)
def test_a_process_of_another_session_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Programs().run([sys.executable, "-c", STUBBORN, "other session"], seconds=3) is None
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
