"""How a worker's process ends: with its exit code, whatever went wrong."""

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

__all__ = ["code_of", "end"]

LAST_WORDS_SECONDS = 5.0
"""Longest wait for the reader of this process' output."""


def code_of(main: Callable[[], int]) -> int:
    """The exit code of a process' main function, whatever it raises."""
    try:
        return main()
    except SystemExit as ending:  # Of argparse.
        return int(ending.code or 0)
    except BaseException:  # The interpreter would print it and end, and that end may never come.
        traceback.print_exc()
        return 1


def end(code: int, *, last_words_seconds: float = LAST_WORDS_SECONDS) -> NoReturn:
    """End this process at once; everything that must be closed is closed by now.

    The interpreter's own end would destroy TensorFlow's iterators. They wait for their threads, and
    a thread that is about to run the user's Python waits for the interpreter for ever. An error
    here would have the same effect, and the reader of the output may be gone or stuck.
    """
    last = threading.Timer(last_words_seconds, os._exit, [code])
    last.daemon = True
    last.start()
    for say in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError):
            say()
    os._exit(code)
