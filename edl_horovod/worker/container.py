"""A worker that is its container's main process: signals, and the pod's readiness."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["begin", "shown_as_ready"]


def begin(ready_file: Path | None) -> None:
    """Handle signals as process 1, and remove what a killed process left behind.

    Args:
        ready_file: Of a pod; None elsewhere.
    """
    if os.getpid() == 1:
        # The kernel keeps a signal from process 1 that has no handler for it.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


@contextmanager
def shown_as_ready(ready_file: Path | None) -> Iterator[None]:
    """Keep the file in place within the block; a pod's readiness probe looks for it.

    Args:
        ready_file: Of a pod; None elsewhere.
    """
    if ready_file is None:
        yield
        return
    ready_file.parent.mkdir(parents=True, exist_ok=True)
    ready_file.touch()
    try:
        yield
    finally:
        ready_file.unlink(missing_ok=True)
