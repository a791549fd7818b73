"""Who of the workers may be in the ring now, and who may go home."""

import time
from collections.abc import Iterable

from edl_horovod.coordinator.decide import choose_members, num_workers
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.workers import Worker, WorkerServer

__all__ = ["Roster"]


class Roster:
    """The workers as `choose_members` must see them, and the slots that are wanted."""

    def __init__(self, server: WorkerServer, settings: CoordinatorSettings) -> None:
        """No slot is wanted yet.

        Args:
            server: Knows the workers.
            settings: The job's facts.
        """
        self._server = server
        self._settings = settings
        self.wanted: dict[str, int] = {}
        """Host name to number of slots, as host discovery gives them."""

    def workers(self, names: Iterable[str]) -> list[Worker]:
        """Those of the named that are still known."""
        return [self._server.workers[name] for name in names if name in self._server.workers]

    def target(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """The ring that should be, as far as is known without asking anybody.

        Args:
            members: Of the ring now.
        """
        known = self._server.workers.values()
        return self._choose([w for w in known if w.is_ready or w.name in members], members)

    def answering(self, members: tuple[str, ...], asked_at: float) -> tuple[str, ...]:
        """The next ring: of workers outside the old one that gave a sign of life.

        Args:
            members: Of the ring before.
            asked_at: When they were asked for it.
        """
        known = self._server.workers.values()
        return self._choose([w for w in known if w.is_ready and w.heard_at >= asked_at], members)

    def send_home(self, members: tuple[str, ...]) -> None:
        """Dismiss workers whose slot is no longer wanted, once they are in no ring.

        Args:
            members: Of the ring now.
        """
        for worker in self._server.workers.values():
            is_outside = worker.is_ready and worker.name not in members
            slots = num_workers(self.wanted.get(worker.candidate.host, 0), self._settings.spares)
            # An emptied hosts file sends nobody home: who waits warm keeps the job's state.
            is_unwanted = bool(self.wanted) and worker.candidate.slot >= slots
            if is_outside and (worker.is_leaving or is_unwanted) and not worker.is_dismissed:
                worker.is_leaving = worker.is_dismissed = True
                worker.send("stop", reason="its slot is no longer wanted")

    def until_pardon(self) -> float | None:
        """Seconds until a worker that spoiled rings is tried again; None if there is none."""
        now = time.monotonic()
        waits = [worker.not_before - now for worker in self._server.workers.values()]
        return min((wait for wait in waits if wait > 0), default=None)

    def _choose(self, there: list[Worker], members: tuple[str, ...]) -> tuple[str, ...]:
        usable = [worker.candidate for worker in there if _is_usable(worker)]
        return choose_members(
            usable, self.wanted, members, self._settings.max_np, spares=self._settings.spares
        )


def _is_usable(worker: Worker) -> bool:
    is_there = worker.is_connected and not worker.is_leaving and not worker.is_silent
    return is_there and not worker.is_hung and worker.not_before <= time.monotonic()
