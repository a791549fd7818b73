"""Decides which workers may be in the ring now, and which are dismissed."""

import logging
import math
import time
from collections.abc import Iterable

from edl_horovod.coordinator.autoscale import RingLimit
from edl_horovod.coordinator.decide import choose_members, in_order_of_ranks
from edl_horovod.coordinator.messages import Stop
from edl_horovod.coordinator.ring_size import num_workers
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.workers import Worker, WorkerServer
from edl_horovod.job.events import EventLog, LogEvent

__all__ = ["Roster"]

log = logging.getLogger(__name__)


class Roster:
    """Prepares what `choose_members` needs: the usable workers and the wanted slots.

    The job's state is in its workers' memory. So a worker with a step that no other one has stays
    in the ring, wanted or not, until others have the state too.
    """

    def __init__(
        self,
        server: WorkerServer,
        settings: CoordinatorSettings,
        events: EventLog,
        limit: RingLimit,
    ) -> None:
        self._server = server
        self._settings = settings
        self._leaver_seconds = settings.timings.leaver_seconds
        self._events = events
        self._limit = limit
        self._holder = ""
        self.is_ending = False
        """Whether this coordinator is about to end, so that it admits no more workers."""
        self.wanted: dict[str, int] = {}
        """Host name to number of slots, as host discovery gives them."""

    def workers(self, names: Iterable[str]) -> list[Worker]:
        """The named workers that are still known."""
        return [self._server.workers[name] for name in names if name in self._server.workers]

    def target(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """The ring that should be, as far as is known without asking anybody."""
        known, ring = self._server.workers.values(), frozenset(members)
        return self._choose([w for w in known if w.is_ready or w.name in ring], members)

    def responsive_members(self, members: tuple[str, ...], asked_at: float) -> tuple[str, ...]:
        """The next ring: of workers outside the old one that gave a sign of life."""
        known = self._server.workers.values()
        return self._choose([w for w in known if w.is_ready and w.heard_at >= asked_at], members)

    def dismiss_unwanted(self, members: tuple[str, ...]) -> None:
        """Dismiss workers that are to go, once they are in no ring and the state is safe."""
        ring = frozenset(self.workers(members))
        has_ring = bool(ring) and all(
            w.is_answering and not w.is_ready and w.formed == w.placed for w in ring
        )
        keeper = None if has_ring else self._most_advanced()
        for worker in self._server.workers.values():
            worker.was_listed |= worker.candidate.host in self.wanted or worker.placed > 0
            is_outside = worker.is_ready and worker not in ring
            is_to_go = worker.is_leaving or self._is_unwanted(worker)
            is_needed = worker.step >= 0 and not has_ring and not self._may_end(worker)
            if is_outside and is_to_go and not is_needed and not worker.is_dismissed:
                worker.leave()
                worker.is_dismissed = True
                worker.send(Stop(reason="its slot is no longer wanted", has_state=worker is keeper))

    def until_next(self) -> float | None:
        """Seconds until time alone changes something; None if it does not.

        At that time a worker that spoiled rings is tried again, or a leaving one must go.
        """
        now = time.monotonic()
        moments = [
            moment
            for worker in self._server.workers.values()
            for moment in (
                worker.not_before,
                (worker.leaving_since or -math.inf) + self._leaver_seconds,
            )
        ]
        return min((moment - now for moment in moments if moment > now), default=None)

    def _most_advanced(self) -> Worker | None:
        """The most advanced worker outside a ring; of several with the same steps the oldest."""
        holders = [
            worker
            for worker in self._server.workers.values()
            if worker.step >= 0 and worker.is_ready and worker.is_answering and not worker.is_hung
        ]
        return max(holders, key=lambda w: (w.step, -w.candidate.order), default=None)

    def _is_unwanted(self, worker: Worker) -> bool:
        # An emptied hosts file dismisses no worker: a warm one keeps the job's state. And a
        # pod may be warm before host discovery names it.
        slots = num_workers(self.wanted.get(worker.candidate.host, 0), self._settings.spares)
        return bool(self.wanted) and worker.was_listed and worker.candidate.slot >= slots

    def _may_end(self, worker: Worker) -> bool:
        """Whether a worker that was asked to end may do so although no ring trains."""
        stays = any(
            other.step >= worker.step and _is_usable(other) and not self._is_unwanted(other)
            for other in self._server.workers.values()
        )
        return worker.is_leaving and (stays or not self._may_hold(worker))

    def _choose(self, answering: list[Worker], members: tuple[str, ...]) -> tuple[str, ...]:
        usable = [worker.candidate for worker in answering if _is_usable(worker)]
        chosen = choose_members(
            usable, self.wanted, members, self._limit.most, spares=self._settings.spares
        )

        def steps(worker: Worker) -> float:
            # In a formed ring all that have its state have the same; no worker outside has more.
            if not worker.is_ready and worker.formed == worker.placed:
                return math.inf if worker.has_state else -1
            return worker.step

        most = max((steps(w) for w in self.workers(chosen)), default=-1)
        holders = [w for w in answering if steps(w) > most and self._may_hold(w)]
        if not holders or not any(self.wanted.values()):
            return chosen
        holder = min(holders, key=lambda w: (-steps(w), w.is_leaving, w.candidate.order))
        if holder.name != self._holder:
            self._holder = holder.name
            message = f"worker {holder.label} is to go, but stays: it alone has the job's state"
            self._events.write(LogEvent(message=message))
            log.info("%s", message)
        # One more than the limit for a moment, but never more than its bound.
        others = self.workers(chosen)[: self._settings.ring_bound - 1]
        return in_order_of_ranks([*(w.candidate for w in others), holder.candidate])

    def _may_hold(self, worker: Worker) -> bool:
        """Whether it can stay until another worker has the job's state, if there can be one."""
        now = time.monotonic()
        is_there = worker.is_answering and not worker.is_hung
        if not is_there or worker.is_dismissed or worker.not_before > now:
            return False
        if worker.leaving_since is None:
            return True
        if now >= worker.leaving_since + self._leaver_seconds:
            return False
        if any(_is_usable(other) for other in self._server.workers.values()):
            return True
        if self.is_ending:
            return False
        # On one machine a slot's next worker starts only when this one has ended.
        slots = {host: num_workers(n, self._settings.spares) for host, n in self.wanted.items()}
        is_wanted = worker.candidate.slot < slots.get(worker.candidate.host, 0)
        return not slots or sum(slots.values()) > is_wanted


def _is_usable(worker: Worker) -> bool:
    is_there = worker.is_answering and not worker.is_leaving and not worker.is_hung
    return is_there and worker.not_before <= time.monotonic()
