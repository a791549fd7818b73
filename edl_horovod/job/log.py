"""Logging of a process: one line format, each line prefixed with who speaks."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.job.events import EventLog, LogEvent

__all__ = ["also_to", "setup", "warnings_to"]

_ABOUT_RESULTS = (
    "columns",
    "frameworks",
    "model_zoo",
    "models",
    "records",
    "tasks",
    "trained_model",
)
"""The packages whose warnings concern what a job computes; those of the ring have events."""
_PASSING = "edl_horovod.records.files."
"""Tries again, by itself."""


def setup(who: str, *, level: str = "info") -> None:
    """Send this package's log lines to stderr.

    Only the logger of this package is touched: the root logger belongs to the program that uses us.

    Args:
        who: Stands at the start of each line, for instance `localhost:1` or `coordinator`.
        level: Name of a `logging` level, in any case.
    """
    logger = logging.getLogger("edl_horovod")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(who))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


@contextlib.contextmanager
def also_to(path: Path, who: str) -> Iterator[None]:
    """Append what this thread logs to a file as well, at the level that is set already.

    Raises:
        OSError: The file cannot be written.
    """
    handler = _SilentFileHandler(path, encoding="utf-8")
    handler.setFormatter(_formatter(who))
    thread = threading.get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    try:
        with _added(handler):
            yield
    finally:
        with contextlib.suppress(OSError):  # It writes what is left of a line.
            handler.close()


@contextlib.contextmanager
def warnings_to(events: EventLog) -> Iterator[None]:
    """Write warnings that concern the job's result into its events as well, each once a job.

    A worker's log is rarely read while the job goes well.
    """
    with _added(_EventHandler(events)):
        yield


@contextlib.contextmanager
def _added(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("edl_horovod")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _EventHandler(logging.Handler):
    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._events = events
        self._names = tuple(f"edl_horovod.{package}" for package in _ABOUT_RESULTS)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(self._names) and not record.name.startswith(_PASSING):
            self._events.write_once(LogEvent(message=record.getMessage()))


class _SilentFileHandler(logging.FileHandler):
    """Loses what cannot be written, as where the disk is full; stderr has it too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (of logging)
        """Go on."""


def _formatter(who: str) -> logging.Formatter:
    return logging.Formatter(f"%(asctime)s {who} %(levelname).1s %(message)s", "%H:%M:%S")
