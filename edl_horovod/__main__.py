"""The command `edl`, and `python -m edl_horovod`."""

import os
import signal
import sys

_EXIT_CODE = 130
"""The exit code of `errors.Interrupted`, which is not imported yet."""


def main() -> int:
    """Run the command; Ctrl-C while it is imported ends it without a traceback, too.

    Returns:
        The exit code.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from edl_horovod.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _end(_signal: int, _frame: object) -> None:
    os.write(sys.stderr.fileno(), b"error: interrupted\n")
    os._exit(_EXIT_CODE)


if __name__ == "__main__":
    sys.exit(main())
