"""Build Horovod's wheel for this environment, and print its path: for images.

It needs no other part of edl_horovod than `errors` and `files`, so an image's layer with the wheel
stays as it is when other code changes.
"""

import sys

from edl_horovod.errors import EdlError
from edl_horovod.horovod_build.progress import Display
from edl_horovod.horovod_build.recipe import find_target
from edl_horovod.horovod_build.wheel import provide_wheel


def main() -> int:
    """Build it, or find it; returns the exit code."""
    try:
        print(provide_wheel(find_target(), None, Display(sys.stderr)))
    except EdlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
