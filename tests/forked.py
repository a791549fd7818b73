"""Something that happens in another process, which has all that this one has."""

import os
import traceback


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
