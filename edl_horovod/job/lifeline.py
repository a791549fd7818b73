"""End a child process when its parent ends, even if the parent is killed."""

import os
import select
import signal
import sys
import threading

LIFELINE_VARIABLE = "EDL_LIFELINE"
"""`stdin` ends the process at the end of standard input; a number, when that process ends."""


def end_with_parent() -> None:
    """End this process when its parent ends, if the parent set the lifeline variable.

    The kernel closes the parent's end of a pipe even if the parent is killed, so no process is left
    behind. A process that leads a group, as every `Child` does, ends the whole group.
    """
    lifeline = os.environ.get(LIFELINE_VARIABLE, "")
    # mpirun passes its standard input to rank 0 alone, and ends all ranks when rank 0 ends.
    has_stdin = os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0"
    if lifeline.isdecimal() or (lifeline == "stdin" and has_stdin):
        threading.Thread(target=_wait, args=(lifeline,), name="lifeline", daemon=True).start()


def _wait(lifeline: str) -> None:
    if lifeline == "stdin":
        while os.read(sys.stdin.fileno(), 1024):
            pass
    else:
        _wait_for_process(int(lifeline))
    if os.getpgrp() == os.getpid():
        # Child processes, for instance of a user's data loader, would stay behind.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _wait_for_process(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([process], [], [])
