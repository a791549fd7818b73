"""Where the threads of this process are, as short lines, and which of them is the user's code."""

import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType

_PACKAGES = (
    "<",
    f"{Path(__file__).parents[1]}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Begins of the names of files that are not the user's."""


def of_main_thread() -> tuple[str, ...]:
    """The main thread's stack as `file:line in function`, the innermost call last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return _lines(reversed([*walk_stack(frame)])) if frame is not None else ()


def of_traceback(traceback: TracebackType | None) -> tuple[str, ...]:
    """The calls through which an error came, as those of a stack."""
    return _lines(walk_tb(traceback))


def place_in_user_code(stack: Iterable[str]) -> str:
    """The innermost call of a stack that is not in a package; empty without one."""
    places = [line for line in stack if not line.startswith(_PACKAGES)]
    return Path(places[-1]).name if places else ""


def place_of_other_threads() -> str:
    """The same for the first other thread that runs the user's code, as one that makes examples."""
    passed_over = {threading.get_ident(), threading.main_thread().ident}
    for thread, frame in sys._current_frames().items():
        if thread not in passed_over and (
            place := place_in_user_code(_lines(reversed([*walk_stack(frame)])))
        ):
            return place
    return ""


def _lines(calls: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    # Without the source: its file may be on the file server for which this process waits.
    return tuple(
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in calls
    )
