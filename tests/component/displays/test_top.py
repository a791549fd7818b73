"""`edl top` on a real terminal, a pseudo terminal that the test holds the other end of."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from edl_horovod.cli.main import main
from edl_horovod.errors import ConfigError
from edl_horovod.job.events import EventLog
from tests.dashboard import new_job
from tests.job_events import event

SECONDS = 30.0
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""What makes a terminal show another screen, and again the one before."""


@pytest.fixture
def job_dir(tmp_path):
    path = new_job(tmp_path)
    with EventLog(path / "events.jsonl", "host:0") as log:
        log.write(event("job", state="running", task="train"))
        log.write(event("step", step=3, total_steps=90, loss=0.25, size=2))
        log.write(event("account", seconds={"computing": 3.0, "input": 1.0}))
        log.write(event("worker", worker="host:1", state="lost", message="\x1b[2Jcleared"))
    return path


class Terminal:
    """A terminal that shows `edl top`."""

    def __init__(self, master, process):
        self._master, self.process, self.shown = master, process, ""

    def read_until(self, is_there):
        deadline = time.monotonic() + SECONDS
        while not is_there(self.shown):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._master, 1 << 16).decode(errors="replace")
                except OSError:  # The other end is closed.
                    break

    def wait_for(self, text):
        self.read_until(lambda shown: text in CONTROL.sub("", shown))


@contextlib.contextmanager
def top(job_dir):
    master, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "110", "LINES": "50", "TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-m", "edl_horovod", "top", str(job_dir)],
        stdin=other,
        stdout=other,
        stderr=other,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(other)
        try:
            yield Terminal(master, process)
        finally:
            process.kill()
            os.close(master)


def test_it_follows_a_job_and_leaves_its_end_on_the_screen(job_dir):
    with top(job_dir) as terminal:
        terminal.wait_for("3 of 90")
        terminal.wait_for("75.0%")
        assert ENTER in terminal.shown
        assert "\x1b[2Jcleared" not in terminal.shown, "a job's texts cannot steer the terminal"
        with EventLog(job_dir / "events.jsonl", "launcher") as log:
            log.write(event("step", step=9, total_steps=90, size=1))
            terminal.wait_for("9 of 90")
            log.write(event("job", state="finished", steps=90))
        terminal.read_until(lambda shown: "finished" in shown.partition(LEAVE)[2])
        assert terminal.process.wait(SECONDS) == 0


def test_ctrl_c_ends_the_panel_and_not_the_job(job_dir):
    with top(job_dir) as terminal:
        terminal.wait_for("3 of 90")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("edl top")
        assert LEAVE in terminal.shown
        assert terminal.process.wait(SECONDS) == 130


def test_without_a_terminal_it_says_what_to_use(job_dir, capsys):
    assert main(["top", str(job_dir)]) == ConfigError.exit_code
    assert "edl status" in capsys.readouterr().err
