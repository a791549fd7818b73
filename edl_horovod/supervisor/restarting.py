"""Children of a launcher that are started again when they end before the job does."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from edl_horovod.errors import JobFailed, NotEnoughWorkers, OutputError
from edl_horovod.supervisor.deaths import exit_text
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import Child

__all__ = ["RestartingChild"]

log = logging.getLogger(__name__)

HOPELESS_RESTARTS = 8
"""Ends of one child within QUICK_SECONDS after which it is given up."""
QUICK_SECONDS = 30.0


class RestartingChild:
    """A child, and the next one in its place."""

    def __init__(
        self, name: str, command: Command, logs: Path, *, is_over: Callable[[], bool]
    ) -> None:
        """Start it; once `is_over` says that the job has an outcome, it was right to end."""
        self._command, self._log, self._is_over = command, logs / f"{name}.log", is_over
        self._restarts = _Restarts(name)
        self.child = Child(command, self._log)

    def keep(self) -> None:
        """Start it again if it has ended; call it often."""
        if self.child.exit_code is not None and not self._is_over():
            self._restarts.count(self.child)
            self.child.close()
            self.child = Child(self._command, self._log)


class _Restarts:
    """Ends of one child in quick succession; too many of them end the job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ends: list[float] = []

    def count(self, child: Child) -> None:
        """Note one more, and wait a little before the next start: its port may be taken."""
        if child.exit_code == OutputError.exit_code:
            raise OutputError(
                f"The job's directory cannot be written any more. The log of the {self._name} "
                f"({child.log_path}) says why, and what to do:\n{child.tail()}"
            )
        if child.exit_code == NotEnoughWorkers.exit_code:
            raise NotEnoughWorkers(
                f"The {self._name} gave up waiting for workers. Its log ({child.log_path}) ends:\n"
                f"{child.tail(1)}"
            )
        now = time.monotonic()
        self._ends = [*(at for at in self._ends if now - at < QUICK_SECONDS), now]
        if len(self._ends) >= HOPELESS_RESTARTS:
            raise JobFailed(
                f"The {self._name} ended {len(self._ends)} times within {QUICK_SECONDS:.0f} s. "
                f"Its log ({child.log_path}) ends:\n{child.tail()}"
            )
        wait = min(0.2 * (len(self._ends) - 1), 2.0)
        ended = exit_text(child.exit_code or 0)
        log.warning("the %s ended with %s; it starts again", self._name, ended)
        time.sleep(wait)
