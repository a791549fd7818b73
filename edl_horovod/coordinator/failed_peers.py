"""Decides who is left out, and for how long, when rings fail to form although all members live.

This happens, for instance, if two hosts reach the coordinator but not each other (D11). No worker
is left out for ever.
"""

import logging
import time
from collections.abc import Iterable, Sequence

from edl_horovod.coordinator.settings import Timings
from edl_horovod.coordinator.workers import Worker
from edl_horovod.job.events import EventLog, WorkerEvent

__all__ = ["FailedPeers", "suspects"]

log = logging.getLogger(__name__)


def suspects(members: Sequence[Worker], proven: Sequence[str], *, min_np: int) -> list[Worker]:
    """The workers to leave out of the next ring after one of these did not form; maybe all.

    They are those of one host: the one that most members could not reach, else the youngest. Where
    newcomers joined a ring that worked before, it is a host of theirs. So the ring becomes smaller
    until it works.

    Args:
        members: Of the ring, in the order of their ranks.
        proven: Members of the last one that formed.
        min_np: Fewer are no ring.
    """
    newcomers = [worker for worker in members if worker.name not in proven]
    pool = newcomers if newcomers and len(newcomers) < len(members) else members
    named = [address for worker in members for address in worker.unreached]
    by_host: dict[str, list[Worker]] = {}
    for worker in pool:
        by_host.setdefault(worker.candidate.host, []).append(worker)
    groups = list(by_host.values()) if len(by_host) > 1 else [[worker] for worker in pool]
    # In the order of ranks the youngest host is the last one.
    worst = max(range(len(groups)), key=lambda i: (named.count(groups[i][0].address), i))
    is_enough = len(members) - len(groups[worst]) >= min_np
    return groups[worst] if is_enough else list(members)


class FailedPeers:
    """Keeps account of failed formings over the whole job, and of who waits because of them."""

    def __init__(self, events: EventLog, *, min_np: int, timings: Timings) -> None:
        self._events = events
        self._timings = timings
        self._min_np = min_np
        self._since: float | None = None
        self._left_out: list[Worker] = []
        """After the last failure."""

    def failed(self, members: Sequence[Worker], proven: Sequence[str], began: float) -> None:
        """Let workers that may have spoiled ring after ring wait, longer and longer.

        The first failure has no consequence, nor has one that a lost member explains.

        Args:
            members: Of a ring that was not formed.
            proven: Members of the last one that was.
            began: When the change to that ring began.
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
        """Note that a ring works: a worker left out of it waits longer than its failures cost.

        It also waits twice as long as after the failures before, however little these cost. Who was
        left out before without effect is invited again at once.
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
