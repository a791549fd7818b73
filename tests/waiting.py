"""Wait for what happens elsewhere: on an event loop, in another thread, process or host."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05


def wait_until(is_true, what="something", *, seconds=SECONDS, describe=str, pause=LONGEST_PAUSE):
    """Wait until a condition is true; fail the test where that takes too long.

    Args:
        is_true: Asked again and again; it may fail the test itself, as where a process has ended.
        what: What the condition means, for the message.
        seconds: The longest time.
        describe: Returns what helps to see why not, for the message.
        pause: The longest time between two questions.

    Returns:
        What the condition returned.
    """
    deadline, seconds_between = time.monotonic() + seconds, FIRST_PAUSE
    while not (answer := is_true()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{describe()}"
        time.sleep(min(seconds_between, pause))
        seconds_between *= 1.5
    return answer


def watch(is_true, seconds, describe=str):
    """Require a condition to hold the whole time, where nothing is to happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert is_true(), describe()
        time.sleep(LONGEST_PAUSE)


async def until(is_true, seconds=SECONDS):
    """Wait on an event loop until a condition is true; fail the test where that takes too long."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(FIRST_PAUSE)


async def hold(is_true, seconds):
    """Require a condition to hold the whole time on an event loop, where nothing is to happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert is_true()
        await asyncio.sleep(FIRST_PAUSE)


def end(process, *, number=signal.SIGTERM, seconds=10):
    """Ask a process to end, and kill it where that takes too long; returns its exit code."""
    process.send_signal(number)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def is_running(pid):
    """Whether there is such a process, and it is not dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
