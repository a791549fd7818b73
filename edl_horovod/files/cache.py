"""The user's cache folder, and the lock under which one process builds a file for all others."""

import contextlib
import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from edl_horovod.errors import OutputError, hint_of

log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 600.0
"""How long a process waits for another one before it builds the file itself.

The lock of a process that dies is released at once, and an index of ten million chunks takes
minutes.
"""
_TELL_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 0.1


def user_cache() -> Path:
    """Return the cache folder of edl_horovod (XDG Base Directory Specification); it may not exist.

    Raises:
        RuntimeError: This user has no home directory.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "edl_horovod"


def unwritable(thing: str, error: OSError, received: Mapping[str, object]) -> OutputError:
    """The error for something that cannot be written into the user's cache."""
    return OutputError(
        f"{thing} cannot be kept in the cache: {error}.",
        received=received,
        hint=f"{hint_of(error)} XDG_CACHE_HOME names the folder that the cache is in.",
    )


@contextlib.contextmanager
def one_builder(
    locks: Sequence[Path], tell: Callable[[str], None], *, doing: str, gives_up: bool = True
) -> Iterator[int]:
    """Hold the first lock file that can be created; its folder is created if needed.

    A file is locked instead of its folder because network file systems cannot lock folders. The
    file is removed at the end; after a killed process it stays, and the next process reuses it.

    Args:
        locks: The lock files, the preferred one first.
        tell: Called with messages for the user while this process waits.
        doing: What the holder of the lock does, a clause for these messages.
        gives_up: Whether this process also builds after `LONGEST_WAIT_SECONDS`.

    Yields:
        The number of the lock that is held; `len(locks)` if none could be created, and then every
        process builds.
    """
    for number, path in enumerate(locks):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open(path)
        except OSError as error:
            log.debug("no lock file can be created in %s: %s", path.parent, error)
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

    def wait(self, tell: Callable[[str], None], doing: str, max_seconds: float) -> None:
        """Wait for the lock; return without it after a time, or if locking is not supported."""
        began, pause_seconds, next_report_seconds = time.monotonic(), 0.002, _TELL_SECONDS
        while (waited_seconds := time.monotonic() - began) < max_seconds:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    self._is_held = True
                    return
                descriptor = _open(self._path)  # Its holder removed the file while we waited.
            except BlockingIOError:
                if waited_seconds >= next_report_seconds:
                    tell(f"Another process {doing} ({self._path}), for {waited_seconds:.0f} s now")
                    next_report_seconds += 6 * _TELL_SECONDS
                time.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            except OSError as error:
                log.debug("%s cannot be locked: %s", self._path, error)
                return
            else:
                os.close(self._descriptor)
                self._descriptor = descriptor

    def release(self) -> None:
        with contextlib.suppress(OSError):
            # Removed while it is held: a process that opens the path from now on gets a new file.
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
