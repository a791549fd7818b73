"""Ends a child process when the process that started it ends, however that one died."""

import os
import select
import signal
import sys
import threading

__all__ = ["end_with_parent"]

LIFELINE_VARIABLE = "EDL_LIFELINE"
"""`stdin`: the end of standard input ends the process; a number: so does the end of that process.
"""


def end_with_parent() -> None:
    """End this process with its starter, if that one gave it a lifeline.

    A pipe's end is closed by the kernel also when the starter is killed, so nothing is left behind;
    a process that leads a group, as every `Child` does, takes the whole group with it.
    """
    lifeline = os.environ.get(LIFELINE_VARIABLE, "")
    # mpirun hands its standard input to rank 0 alone, and ends all ranks when that one ends.
    has_the_input = os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0"
    if lifeline.isdecimal() or (lifeline == "stdin" and has_the_input):
        threading.Thread(target=_wait, args=(lifeline,), name="lifeline", daemon=True).start()


def _wait(lifeline: str) -> None:
    if lifeline == "stdin":
        while os.read(sys.stdin.fileno(), 1024):
            pass
    else:
        _wait_for_process(int(lifeline))
    if os.getpgrp() == os.getpid():
        # What this process started, as a user's loader may: it would stay behind.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _wait_for_process(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([process], [], [])
