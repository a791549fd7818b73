"""Something that happens in another process, which has all that this one has."""

import os
import traceback
import warnings


def fork(act):
    """Do something in a child, which ends with 1 where that fails; the child's pid."""
    if child := os.fork():
        return child
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def quiet_fork():
    """`os.fork()`: Python 3.12 warns of threads, and those of NumPy know about forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
