"""Asks every worker again and again for a sign of life, and decides which of them hang (D11)."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl_horovod.coordinator.messages import Dump, End
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.workers import Report, Worker, WorkerServer
from edl_horovod.job.events import EventLog, LogEvent, WorkerEvent

__all__ = ["Liveness", "Verdict", "find_hung"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision on a worker that has made no progress for too long."""

    worker: str
    phase: str
    """What it is in the middle of."""
    message: str
    is_end: bool = True
    """Whether it is to end; false where no other rank waits for it: it may take its time."""


class Liveness:
    """Pings the workers, and acts on missing answers and on what the answers report."""

    def __init__(
        self,
        server: WorkerServer,
        settings: CoordinatorSettings,
        events: EventLog,
        *,
        members: Callable[[], Sequence[Worker]],
        on_silent: Callable[[Worker], None],
    ) -> None:
        self._server = server
        self._events = events
        self._stall_seconds = settings.stall_seconds
        self._timings = settings.timings
        self._members = members
        self._on_silent = on_silent
        self._warned: dict[str, str] = {}

    async def watch(self) -> None:
        """Ping, and act on the answers; never ends."""
        while True:
            for worker in list(self._server.workers.values()):
                self._look_at(worker)
                worker.ping()
            self._judge()
            await asyncio.sleep(self._timings.ping_seconds)

    def _look_at(self, worker: Worker) -> None:
        # Unanswered pings and not time: after a pause of this process no worker counts as silent.
        silence = worker.num_unanswered * self._timings.ping_seconds
        if not worker.is_connected or silence < self._timings.silence_seconds:
            return
        if not worker.is_silent:
            worker.is_silent = True
            log.warning("worker %s does not answer", worker.label)
            self._on_silent(worker)
        # Never the last ones who have the state: they may come back.
        others = [w for w in self._members() if w.is_answering]
        patience = max(
            self._timings.silence_seconds, min(self._timings.dead_seconds, self._stall_seconds)
        )
        if silence >= patience and others and not worker.is_given_up:
            worker.is_given_up = True
            self._report(worker, f"no sign of life for {silence:.0f} s")

    def _judge(self) -> None:
        members = self._members()
        ring = frozenset(members)
        outsiders = [
            worker
            for worker in self._server.workers.values()
            if worker.is_connected and not worker.is_ready and worker not in ring
        ]
        verdicts = find_hung(
            [worker.current_report for worker in members],
            [worker.current_report for worker in outsiders],
            stall_seconds=self._stall_seconds,
        )
        for verdict in verdicts:
            self._carry_out(verdict, self._server.workers[verdict.worker])

    def _carry_out(self, verdict: Verdict, worker: Worker) -> None:
        if verdict.is_end and not worker.is_hung:
            worker.is_hung = True
            self._report(worker, verdict.message)
            worker.send(End(reason=verdict.message))
        elif not verdict.is_end and self._warned.get(worker.label) != verdict.phase:
            self._warned[worker.label] = verdict.phase
            self._events.write(LogEvent(message=f"worker {worker.label}: {verdict.message}"))
            log.warning("worker %s: %s", worker.label, verdict.message)
            worker.send(Dump(reason=verdict.message))

    def _report(self, worker: Worker, message: str) -> None:
        """Report that a worker hangs; its launcher ends it where it does not do so itself."""
        self._events.write(
            WorkerEvent(worker=worker.label, state="hung", pid=worker.pid, message=message)
        )
        log.warning("worker %s hangs: %s", worker.label, message)


def find_hung(
    members: Sequence[Report | None], outsiders: Sequence[Report | None], *, stall_seconds: float
) -> list[Verdict]:
    """Find workers that hang. A rank is ended only if others have waited for it for so long.

    In a ring all ranks begin a step together, so how long others wait is how much longer a rank
    takes than they did: a step that is long for all of them makes none of them suspect.

    Args:
        members: Reports of the ring's members, in the order of their ranks; None for one that has
            not reported anything yet.
        outsiders: Reports of workers that should have come out of an earlier ring.
        stall_seconds: How long is too long.
    """
    hung = []
    for report in outsiders:
        # Without a ring, who is still in an older one may be all that is left of the job.
        if not members or report is None or report.pong.seconds < stall_seconds:
            continue
        if (pong := report.pong).doing in ("works", "joins"):
            message = f"did not come back to the ring for {pong.seconds:.0f} s: {pong.phase}"
            hung.append(Verdict(worker=report.worker, phase=pong.phase, message=message))
    reports = [report for report in members if report is not None]
    if len(reports) < len(members) or any(r.pong.doing not in ("works", "waits") for r in reports):
        return hung
    return hung + _hung_members(reports, stall_seconds)


def _hung_members(reports: Sequence[Report], stall_seconds: float) -> list[Verdict]:
    stalled = [report for report in reports if report.pong.seconds >= stall_seconds]
    late = [report for report in stalled if report.pong.doing == "works"]
    waiting = [report for report in stalled if report.pong.doing == "waits"]
    if len(waiting) == len(reports) > 1:
        # No single rank is to blame, as in an error of the transport. One that ends breaks the
        # collective for all others, who have the state; ending all of them would lose it.
        worker, last = waiting[-1]
        message = f"all {len(waiting)} ranks waited for each other for {last.seconds:.0f} s in "
        message += f"{last.phase}; the last one ends, which frees the others"
        return [Verdict(worker=worker, phase=last.phase, message=message)]
    if waiting and late:
        others = "1 other" if len(waiting) == 1 else f"{len(waiting)} others"
        why = f"while {others} waited for it"
    elif late and len(late) == len(reports):
        why = "and no other rank waits for it, so it goes on"
    else:
        return []
    return [
        Verdict(
            worker=worker,
            phase=pong.phase,
            message=f"no progress for {pong.seconds:.0f} s in {pong.phase}, {why}",
            is_end=bool(waiting),
        )
        for worker, pong in late
    ]
