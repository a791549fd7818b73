"""Logging of a process: one line format, each line prefixed with who speaks."""

import logging
import sys

__all__ = ["setup"]


def setup(who: str, *, level: str = "info") -> None:
    """Send this package's log lines to stderr.

    Only the logger of this package is touched: the root logger belongs to the program that uses us.

    Args:
        who: Stands at the start of each line, for instance `localhost:1` or `coordinator`.
        level: Name of a `logging` level, in any case.
    """
    logger = logging.getLogger("edl_horovod")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {who} %(levelname).1s %(message)s", "%H:%M:%S")
    )
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
