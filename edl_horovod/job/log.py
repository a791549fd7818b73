"""Logging of a process: one line format, with the name of the process in each line."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.job.events import EventLog, LogEvent

_ABOUT_RESULTS = (
    "columns",
    "frameworks",
    "model_zoo",
    "models",
    "records",
    "tasks",
    "trained_model",
)
"""The packages whose warnings concern a job's result; the ring reports problems as events."""
_TRANSIENT = "edl_horovod.records.files."
"""Warnings about reads that are retried."""


def setup(name: str, *, level: str = "info") -> None:
    """Send this package's log lines to stderr.

    Only the logger of this package is changed: the root logger belongs to the calling program.

    Args:
        name: The name of the process in each line, for instance `localhost:1` or `coordinator`.
        level: Name of a `logging` level, in any case.
    """
    logger = logging.getLogger("edl_horovod")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(name))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


@contextlib.contextmanager
def logging_to(path: Path, name: str) -> Iterator[None]:
    """Also append what this thread logs to a file, at the level that is already set.

    Raises:
        OSError: The file cannot be written.
    """
    handler = _SilentFileHandler(path, encoding="utf-8")
    handler.setFormatter(_formatter(name))
    thread = threading.get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    try:
        with _added(handler):
            yield
    finally:
        with contextlib.suppress(OSError):  # It writes the rest of a line.
            handler.close()


@contextlib.contextmanager
def warnings_as_events(events: EventLog) -> Iterator[None]:
    """Also write warnings about the job's result to its events, each once in a job.

    Few people read a worker's log while the job runs without errors.
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
        if record.name.startswith(self._names) and not record.name.startswith(_TRANSIENT):
            self._events.write_once(LogEvent(message=record.getMessage()))


class _SilentFileHandler(logging.FileHandler):
    """Ignores lines that cannot be written, as on a full disk; stderr has them, too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Ignore the error."""


def _formatter(name: str) -> logging.Formatter:
    return logging.Formatter(f"%(asctime)s {name} %(levelname).1s %(message)s", "%H:%M:%S")
