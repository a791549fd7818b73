"""Decides which workers may be in the ring now, which wait, and which are dismissed.

Rings may fail to form although all members live, for instance if two hosts reach the coordinator
but not each other (D11). Then some workers are left out for a while, but never for good.
"""

import logging
import math
import time
from collections.abc import Iterable, Sequence

from edl_horovod.coordinator.autoscale import RingLimit
from edl_horovod.coordinator.decide import choose_members, in_order_of_ranks
from edl_horovod.coordinator.messages import Stop
from edl_horovod.coordinator.settings import CoordinatorSettings, Timings
from edl_horovod.coordinator.workers import Worker, WorkerServer
from edl_horovod.job.events import EventLog, LogEvent, WorkerEvent
from edl_horovod.job.hosts import num_workers

__all__ = ["FailedPeers", "Roster", "suspects"]

log = logging.getLogger(__name__)


class Roster:
    """Chooses the members of the ring from the connected workers, and dismisses the others.

    The job's state is in its workers' memory. So a worker with steps that no other worker has stays
    in the ring, wanted or not, until others have the state as well.
    """

    def __init__(
        self,
        server: WorkerServer,
        settings: CoordinatorSettings,
        events: EventLog,
        limit: RingLimit,
    ) -> None:
        self._server = server
        self._spares, self._ring_bound = settings.elastic.spares, settings.ring_bound
        self._leaver_seconds = settings.timings.leaver_seconds
        self._events = events
        self._limit = limit
        self._reported_holder = ""
        """The worker that was last reported as kept because it alone has the job's state."""
        self.is_ending = False
        """Whether this coordinator is about to end, so that it admits no more workers."""
        self.wanted: dict[str, int] = {}
        """Number of slots by host name, from host discovery."""

    def workers(self, names: Iterable[str]) -> list[Worker]:
        """The named workers that are still known."""
        return [self._server.workers[name] for name in names if name in self._server.workers]

    def target(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """The members that the ring should have, by what is known without pinging any worker."""
        known, ring = self._server.workers.values(), frozenset(members)
        return self._choose([w for w in known if w.is_ready or w.name in ring], members)

    def responsive_members(self, members: tuple[str, ...], asked_at: float) -> tuple[str, ...]:
        """The members of the next ring, among workers that left the old one and answered since."""
        known = self._server.workers.values()
        return self._choose([w for w in known if w.is_ready and w.heard_at >= asked_at], members)

    def dismiss_unwanted(self, members: tuple[str, ...]) -> None:
        """Dismiss unwanted workers that are in no ring, once others have the job's state."""
        ring = frozenset(self.workers(members))
        has_ring = bool(ring) and all(
            w.is_answering and not w.is_ready and w.formed == w.placed for w in ring
        )
        # Without a ring, all workers that have the state may have to go. Then one of them is told
        # to save it (`has_state`).
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
        """Seconds until the choice may change without any message; None if it cannot.

        Then a worker that was held back may join again, or the time of a leaving worker is over.
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
        # An empty hosts file dismisses no worker: the workers have the job's state. And a pod may
        # call before host discovery lists it, so a host that was never listed is not unwanted.
        slots = num_workers(self.wanted.get(worker.candidate.host, 0), self._spares)
        return bool(self.wanted) and worker.was_listed and worker.candidate.slot >= slots

    def _may_end(self, worker: Worker) -> bool:
        """Whether a worker that was asked to end may do so while no ring trains.

        It may if a worker that stays has as many steps, or if it cannot wait any longer.
        """
        stays = any(
            other.step >= worker.step and _is_usable(other) and not self._is_unwanted(other)
            for other in self._server.workers.values()
        )
        return worker.is_leaving and (stays or not self._may_hold(worker))

    def _choose(self, answering: list[Worker], members: tuple[str, ...]) -> tuple[str, ...]:
        usable = [worker.candidate for worker in answering if _is_usable(worker)]
        chosen = choose_members(usable, self.wanted, members, self._limit.most, spares=self._spares)

        def steps(worker: Worker) -> float:
            # Members do not report each step. But all that have the ring's state have the same
            # steps, and no worker outside the ring has more.
            if not worker.is_ready and worker.formed == worker.placed:
                return math.inf if worker.has_state else -1
            return worker.step

        most = max((steps(w) for w in self.workers(chosen)), default=-1)
        holders = [w for w in answering if steps(w) > most and self._may_hold(w)]
        if not holders or not any(self.wanted.values()):
            return chosen
        holder = min(holders, key=lambda w: (-steps(w), w.is_leaving, w.candidate.order))
        if holder.name != self._reported_holder:
            self._reported_holder = holder.name
            message = f"worker {holder.label} is to go, but stays: it alone has the job's state"
            self._events.write(LogEvent(message=message))
            log.info("%s", message)
        # The holder may exceed elastic.max_np for a moment, but never the task's own limit.
        others = self.workers(chosen)[: self._ring_bound - 1]
        return in_order_of_ranks([*(w.candidate for w in others), holder.candidate])

    def _may_hold(self, worker: Worker) -> bool:
        """Whether a worker can stay until another one has the job's state, and one may come."""
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
        # A slot's next worker starts only when this one has ended, so a successor can only come
        # from another slot.
        slots = {host: num_workers(n, self._spares) for host, n in self.wanted.items()}
        is_wanted = worker.candidate.slot < slots.get(worker.candidate.host, 0)
        return not slots or sum(slots.values()) > is_wanted


def _is_usable(worker: Worker) -> bool:
    is_there = worker.is_answering and not worker.is_leaving and not worker.is_hung
    return is_there and worker.not_before <= time.monotonic()


def suspects(members: Sequence[Worker], proven: Sequence[str], *, min_np: int) -> list[Worker]:
    """The workers to leave out of the next ring, after a ring of these members did not form.

    These are the workers of one host: the host that most members could not reach, or else the one
    that joined last. If newcomers had joined a ring that worked, only their hosts are suspected. So
    the ring shrinks host by host until it forms.

    Args:
        members: The members of the ring that did not form, in the order of their ranks.
        proven: Names of the members of the last ring that formed.
        min_np: The smallest ring. If too few remained, all members are returned.
    """
    newcomers = [worker for worker in members if worker.name not in proven]
    pool = newcomers if newcomers and len(newcomers) < len(members) else members
    named = [address for worker in members for address in worker.unreached]
    by_host: dict[str, list[Worker]] = {}
    for worker in pool:
        by_host.setdefault(worker.candidate.host, []).append(worker)
    groups = list(by_host.values()) if len(by_host) > 1 else [[worker] for worker in pool]
    # Ranks are ordered by the age of hosts, so of equally suspected hosts the last one is taken.
    worst = max(range(len(groups)), key=lambda i: (named.count(groups[i][0].address), i))
    is_enough = len(members) - len(groups[worst]) >= min_np
    return groups[worst] if is_enough else list(members)


class FailedPeers:
    """Counts failed formings over the whole job, and holds workers back that may cause them."""

    def __init__(self, events: EventLog, *, min_np: int, timings: Timings) -> None:
        self._events = events
        self._timings = timings
        self._min_np = min_np
        self._since: float | None = None
        self._left_out: list[Worker] = []
        """The workers that were left out of the ring after the last failure."""

    def failed(self, members: Sequence[Worker], proven: Sequence[str], began: float) -> None:
        """Hold back workers that may have broken several rings in a row, each time for longer.

        The first failure has no consequence, and neither has one that a lost member explains.

        Args:
            members: The members of the ring that did not form, in the order of their ranks.
            proven: Names of the members of the last ring that formed.
            began: When the change to that ring began, on the monotonic clock.
        """
        if not all(w.is_connected for w in members) or not any(w.is_ready for w in members):
            return
        self._since = self._since or began
        self._left_out = suspects(members, proven, min_np=self._min_np)
        for worker in self._left_out:
            worker.num_failed_formings += 1
            if worker.num_failed_formings > 1:
                wait = self._timings.held_back_seconds * 2 ** min(
                    worker.num_failed_formings - 2, 10
                )
                self._hold_back(worker, max(wait, time.monotonic() - self._since))

    def formed(self, members: Sequence[Worker], known: Iterable[Worker]) -> None:
        """Note that a ring formed, and hold back the workers whose absence may have made it form.

        They wait longer than the failures have cost the job, and at least twice as long as the last
        time. Workers that were left out earlier, without effect, are invited again at once.
        """
        if self._since is not None:
            cost = time.monotonic() - self._since
            for worker in known:
                if worker.is_connected and worker not in members and worker in self._left_out:
                    wait = cost * 2 ** min(worker.num_failed_formings, 10)
                    worker.left_out_seconds = max(wait, 2 * worker.left_out_seconds)
                    self._hold_back(worker, worker.left_out_seconds)
                elif worker.num_failed_formings > 0:
                    worker.not_before = 0.0
        self._since, self._left_out = None, []
        for worker in members:
            worker.num_failed_formings, worker.left_out_seconds = 0, 0.0
            worker.unreached.clear()

    def _hold_back(self, worker: Worker, wait: float) -> None:
        wait = min(wait, self._timings.max_held_back_seconds)
        worker.not_before = time.monotonic() + wait
        message = f"its rings failed to form {worker.num_failed_formings} times; waits {wait:.1f} s"
        if worker.unreached:
            message += f"; it could not reach {', '.join(sorted(worker.unreached))}"
        self._events.write(WorkerEvent(worker=worker.label, state="waiting", message=message))
        log.warning("worker %s: %s", worker.label, message)
