"""One process at a time makes the index of some data; the others wait for it, with a bound."""

import contextlib
import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["LONGEST_WAIT_SECONDS", "one_builder"]

log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 600.0
"""How long a process waits for another one to build an index, before it scans the files itself.

The lock of a process that dies is free at once, and a scan of ten million chunks takes minutes.
"""
_TELL_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 0.1


@contextlib.contextmanager
def one_builder(
    locks: Sequence[Path],
    tell: Callable[[str], None],
    *,
    doing: str = "indexes the data",
    gives_up: bool = True,
) -> Iterator[int]:
    """Hold the first lock file that can be made; its folder is made if needed.

    A file, not its folder: no network file system locks a folder. It is removed at the end; that
    of a killed process stays, and the next one takes it over.

    Args:
        locks: The lock files, the best place first.
        tell: Called with what people should know while this process waits.
        doing: What the process that holds the lock does, for that.
        gives_up: Whether this process builds, too, after `LONGEST_WAIT_SECONDS`.

    Yields:
        The number of that lock. Without any, the number of locks: every process builds then.
    """
    for number, path in enumerate(locks):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open(path)
        except OSError as error:
            log.debug("no index is kept in %s: %s", path.parent, error)
            continue
        lock = _Lock(path, descriptor)
        try:
            lock.wait(tell, doing, LONGEST_WAIT_SECONDS if gives_up else math.inf)
            yield number
        finally:
            lock.release()
        return
    yield len(locks)


class _Lock:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._is_held = False

    def wait(self, tell: Callable[[str], None], doing: str, longest_seconds: float) -> None:
        """Wait for the lock; without it after so many seconds, or where there are none."""
        began, pause, tell_at = time.monotonic(), 0.002, _TELL_SECONDS
        while (waited := time.monotonic() - began) < longest_seconds:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    self._is_held = True
                    return
                descriptor = _open(self._path)  # Its holder has removed it meanwhile.
            except BlockingIOError:
                if waited >= tell_at:
                    tell(f"Another process {doing} ({self._path}), for {waited:.0f} s now")
                    tell_at += 6 * _TELL_SECONDS
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            except OSError as error:
                log.debug("%s cannot be locked: %s", self._path, error)
                return
            else:
                os.close(self._descriptor)
                self._descriptor = descriptor

    def release(self) -> None:
        with contextlib.suppress(OSError):
            # While it is held: whoever opens the path from now on gets another file.
            if self._is_held and self._is_current():
                self._path.unlink()
        os.close(self._descriptor)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o644)
