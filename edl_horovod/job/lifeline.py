"""Ends a child process when the process that started it ends, however that one died."""

import os
import signal
import sys
import threading

__all__ = ["end_with_parent"]

LIFELINE_VARIABLE = "EDL_LIFELINE"


def end_with_parent() -> None:
    """End this process at the end of its standard input, if the starter made that a lifeline.

    A pipe's end is closed by the kernel also when the starter is killed, so nothing is left behind;
    a process that leads a group, as every `Child` does, takes the whole group with it.
    """
    # mpirun hands its standard input to rank 0 alone, and ends all ranks when that one ends.
    has_the_input = os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0"
    if os.environ.get(LIFELINE_VARIABLE) == "stdin" and has_the_input:
        threading.Thread(target=_wait_for_the_end, name="lifeline", daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    if os.getpgrp() == os.getpid():
        # What this process started, as a user's loader may: it would stay behind.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
