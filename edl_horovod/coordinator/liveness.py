"""Asks every worker again and again for a sign of life, and ends those that hang (D11)."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from edl_horovod.coordinator.hangs import Verdict, find_hung
from edl_horovod.coordinator.messages import Dump, End
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.workers import Worker, WorkerServer
from edl_horovod.job.events import EventLog, LogEvent, WorkerEvent

__all__ = ["Liveness"]

log = logging.getLogger(__name__)


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
