"""One job's coordinator: forms generation after generation until there is a result (D8, D10)."""

import asyncio
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edl_horovod.coordinator import hosts
from edl_horovod.coordinator.decide import assign_ranks, choose_members
from edl_horovod.coordinator.rendezvous import Rendezvous
from edl_horovod.coordinator.workers import Worker, WorkerServer
from edl_horovod.errors import ConfigError
from edl_horovod.events import EventLog
from edl_horovod.whole_file import write_json

__all__ = ["Coordinator", "CoordinatorSettings"]

log = logging.getLogger(__name__)

HOSTS_POLL_SECONDS = 0.1
SILENCE_SECONDS = 10.0
PING_SECONDS = 2.0
SIGN_OF_LIFE_SECONDS = 1.0
FIRST_RING_SECONDS = 30.0
GOODBYE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """What a coordinator must know of its job."""

    job_dir: Path
    address: str
    """Address that the workers can reach; also the rendezvous'."""
    secret: bytes
    num_start: int
    """Ranks that the first ring waits for, for a while."""
    min_np: int
    max_np: int
    wait_seconds: float
    forming_seconds: float


class Coordinator:
    """Owns membership. One loop forms rings; the callbacks only note what happened and wake it."""

    def __init__(self, settings: CoordinatorSettings, events: EventLog) -> None:
        """Prepare; `run` does the work.

        Args:
            settings: The job's facts.
            events: Where to tell what happens.
        """
        self._settings = settings
        self._events = events
        self._server = WorkerServer(
            settings.secret, on_message=self._on_message, on_lost=self._on_lost
        )
        self._wanted: dict[str, int] = {}
        self._generation = 0
        self._members: tuple[str, ...] = ()
        self._reason = "start"
        self._result: dict[str, Any] | None = None
        self._wake = asyncio.Event()
        self._too_few_since: float | None = time.monotonic()
        self._first_warm_at: float | None = None
        self._is_adopting_until = 0.0

    async def run(self) -> dict[str, Any]:
        """Serve until the job has a result, and return it: `state`, and what belongs to that state.

        A coordinator that is started again for the same job finds its number and its port, and
        adopts the ring that goes on without it.
        """
        port = self._load()
        port = await self._server.start(self._settings.address, port)
        self._save(port)
        watch = [
            asyncio.create_task(self._watch_hosts()),
            asyncio.create_task(self._ping_workers()),
        ]
        try:
            while self._result is None:
                await self._advance(port)
        finally:
            for task in watch:
                task.cancel()
        await self._say_goodbye()
        self._server.close()
        return self._result

    # -- what happens
    # -------------------------------------------------------------------------------

    def _on_message(self, worker: Worker, message: dict[str, Any]) -> None:
        worker.is_silent = False
        kind = message["kind"]
        if kind == "hello":
            worker.generation = int(message["generation"])
            worker.is_ready = bool(message["is_ready"])
            self._first_warm_at = self._first_warm_at or time.monotonic()
            self._events.write("worker", worker=worker.label, state="warm", message="")
            if worker.is_ready:
                self._reason = f"{worker.label} is warm"
            log.info("worker %s is warm", worker.label)
        elif kind == "ready":
            worker.is_ready = True
            worker.unformed = max(worker.unformed, int(message["generation"]))
            if message.get("reason"):
                self._reason = str(message["reason"])
                log.info("worker %s left the ring: %s", worker.label, message["reason"])
        elif kind == "formed":
            worker.formed = int(message["generation"])
        elif kind == "leaving":
            worker.is_leaving = True
            self._reason = f"{worker.label} leaves"
        elif kind == "finished":
            self._end({"state": "finished", **message["result"]})
        elif kind == "failed":
            self._end({"state": "failed", "worker": worker.label, **message["error"]})
        self._wake.set()

    def _on_lost(self, worker: Worker) -> None:
        if self._result is None:
            state = "left" if worker.is_leaving else "lost"
            self._events.write("worker", worker=worker.label, state=state, message="")
            log.info("worker %s is gone", worker.label)
            self._reason = f"{worker.label} {state}"
        if worker.name not in self._members:
            self._server.workers.pop(worker.name, None)
        self._wake.set()

    def _end(self, result: dict[str, Any]) -> None:
        if self._result is None:
            self._result = result

    async def _watch_hosts(self) -> None:
        path = self._settings.job_dir / "hosts"
        seen = None
        while True:
            try:
                found = path.stat()
                stamp = (found.st_mtime_ns, found.st_ino)
                if stamp != seen:
                    self._wanted = hosts.parse(path.read_text())
                    self._reason = "hosts changed"
                    self._wake.set()
                    seen = stamp
            except (OSError, ConfigError) as error:
                # The last good answer stands: a bad one must not empty the ring.
                log.warning("hosts file: %s", error)
            await asyncio.sleep(HOSTS_POLL_SECONDS)

    async def _ping_workers(self) -> None:
        while True:
            now = time.monotonic()
            for worker in list(self._server.workers.values()):
                worker.send("ping")
                silent = now - worker.heard_at > SILENCE_SECONDS
                if worker.is_connected and silent and not worker.is_silent:
                    worker.is_silent = True
                    self._reason = f"{worker.label} silent for {SILENCE_SECONDS:.0f} s"
                    log.warning("worker %s does not answer", worker.label)
                    self._wake.set()
            await asyncio.sleep(PING_SECONDS)

    # -- what follows
    # -------------------------------------------------------------------------------

    def _target(self) -> tuple[str, ...]:
        usable = [
            worker.candidate
            for worker in self._server.workers.values()
            if worker.is_connected and not worker.is_leaving and not worker.is_silent
            if worker.is_ready or worker.name in self._members
        ]
        return choose_members(usable, self._wanted, self._members, self._settings.max_np)

    def _workers(self, names: tuple[str, ...]) -> list[Worker]:
        return [self._server.workers[name] for name in names if name in self._server.workers]

    async def _advance(self, port: int) -> None:
        """Compare the ring with what it should be, and act on the difference, or wait for one."""
        self._wake.clear()
        self._send_home()
        target = self._target()
        members = self._workers(self._members)
        is_whole = bool(self._members) and all(
            worker.is_connected and not worker.is_ready for worker in members
        )
        if time.monotonic() < self._is_adopting_until and target != self._members:
            await self._sleep(0.1)
            return
        if target == self._members and is_whole:
            self._too_few_since = None
            await self._sleep(None)
            return
        if len(target) < self._needed():
            # Who is in a ring that may not go on leaves it; who trains alone below min_np stops.
            if self._members:
                await self._dissolve()
            await self._wait_for_more(len(target))
            return
        self._too_few_since = None
        await self._change(port)

    def _needed(self) -> int:
        """Ranks that a ring needs now: the first one waits a while for all that were asked for."""
        least = self._settings.min_np
        if self._generation == 0:
            first = self._first_warm_at
            if first is None or time.monotonic() - first < FIRST_RING_SECONDS:
                wanted = sum(self._wanted.values())
                least = max(least, min(self._settings.num_start, wanted, self._settings.max_np))
        return least

    async def _wait_for_more(self, found: int) -> None:
        now = time.monotonic()
        if self._too_few_since is None:
            self._too_few_since = now
            message = f"{found} workers, {self._settings.min_np} needed"
            self._events.write("job", state="waiting", message=message)
            log.warning("the ring waits: %s", message)
        left = self._too_few_since + self._settings.wait_seconds - now
        if left <= 0:
            self._end(
                {
                    "state": "failed",
                    "error": "NotEnoughWorkers",
                    "message": f"The ring had fewer than elastic.min_np={self._settings.min_np} "
                    f"workers for {self._settings.wait_seconds:.0f} s. Received: {found}. Look "
                    "at the workers' logs, add slots, or lower elastic.min_np.",
                }
            )
            return
        await self._sleep(min(left, 1.0))

    def _send_home(self) -> None:
        """Dismiss workers whose slot is no longer wanted, once they are in no ring."""
        for worker in list(self._server.workers.values()):
            is_outside = worker.is_ready and worker.name not in self._members
            is_wanted = worker.candidate.slot < self._wanted.get(worker.candidate.host, 0)
            if self._wanted and is_outside and (worker.is_leaving or not is_wanted):
                worker.is_leaving = True
                worker.send("stop", reason="its slot is no longer wanted")

    async def _dissolve(self) -> None:
        """End the ring: its members stay warm and wait."""
        await self._gather()
        self._members = ()
        for worker in list(self._server.workers.values()):
            if not worker.is_connected:
                self._server.workers.pop(worker.name)

    async def _gather(self) -> None:
        """Tell all members to leave the ring after their step, and wait for them, not for ever."""
        deadline = None
        while self._result is None:
            waiting = [
                worker
                for worker in self._workers(self._members)
                if worker.is_connected and not worker.is_ready and not worker.is_silent
            ]
            for worker in waiting:
                worker.send("change", generation=self._generation + 1)
            if not waiting:
                return
            now = time.monotonic()
            if deadline is None and any(w.is_ready for w in self._workers(self._members)):
                deadline = now + self._settings.forming_seconds + 2
            if deadline is not None and now >= deadline:
                for worker in waiting:
                    worker.is_silent = True
                    log.warning("worker %s did not leave the ring in time", worker.label)
                return
            self._wake.clear()
            await self._sleep(0.5 if deadline is None else min(0.5, deadline - now))

    async def _change(self, port: int) -> None:
        """One generation: gather the members, see who lives, deal ranks, wait until all formed."""
        began = time.monotonic()
        old_size, reason = len(self._members), self._reason
        candidates = await self._with_sign_of_life()
        await self._gather()
        if self._result is not None:
            return
        target = choose_members(
            [
                worker.candidate
                for worker in self._server.workers.values()
                if worker.is_connected and worker.is_ready and not worker.is_leaving
                if not worker.is_silent and worker.name in candidates
            ],
            self._wanted,
            self._members,
            self._settings.max_np,
        )
        former, self._members = self._members, ()
        for name in former:
            worker = self._server.workers.get(name)
            if worker is not None and not worker.is_connected:
                self._server.workers.pop(name)
        if len(target) < self._settings.min_np:
            return
        self._generation += 1
        self._members = target
        self._save(port)
        is_formed = await self._form()
        self._events.write(
            "generation",
            generation=self._generation,
            size=len(target),
            members=[worker.label for worker in self._workers(target)],
            reason=reason,
            is_formed=is_formed,
            seconds=round(time.monotonic() - began, 4),
        )
        log.info(
            "generation %d: %d -> %d ranks (%s)%s", self._generation, old_size, len(target), reason,
            "" if is_formed else ", could not be formed",
        )  # fmt: skip

    async def _with_sign_of_life(self) -> set[str]:
        """Ping everyone; those who do not answer soon are not invited."""
        asked = {w.name: time.monotonic() for w in self._server.workers.values() if w.is_connected}
        for name in asked:
            self._server.workers[name].send("ping")
        deadline = time.monotonic() + SIGN_OF_LIFE_SECONDS
        while True:
            alive = {
                name
                for name, since in asked.items()
                if (worker := self._server.workers.get(name)) is not None
                if worker.is_connected and worker.heard_at >= since
            }
            connected = {
                n
                for n in asked
                if n in self._server.workers and self._server.workers[n].is_connected
            }
            if alive >= connected or time.monotonic() >= deadline:
                break
            self._wake.clear()
            await self._sleep(deadline - time.monotonic())
        for name in connected - alive:
            self._server.workers[name].is_silent = True
            log.warning("worker %s gave no sign of life", self._server.workers[name].label)
        return alive

    async def _form(self) -> bool:
        settings = self._settings
        async with Rendezvous(
            settings.address, wait_seconds=settings.forming_seconds
        ) as rendezvous:
            members = self._workers(self._members)
            for place in assign_ranks([worker.candidate for worker in members]):
                worker = self._server.workers[place.worker]
                worker.is_ready = False
                worker.generation = self._generation
                worker.send(
                    "assign",
                    **asdict(place),
                    generation=self._generation,
                    host=worker.candidate.host,
                    rendezvous_address=settings.address,
                    rendezvous_port=rendezvous.port,
                )
            deadline = time.monotonic() + settings.forming_seconds + 2
            while self._result is None:
                if all(worker.formed == self._generation for worker in members):
                    return True
                is_broken = any(
                    not worker.is_connected or worker.unformed == self._generation
                    for worker in members
                )
                if is_broken or time.monotonic() >= deadline:
                    return False
                self._wake.clear()
                await self._sleep(deadline - time.monotonic())
        return False

    async def _sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _say_goodbye(self) -> None:
        """Tell all workers that the job is over, and give them a moment to go."""
        deadline = time.monotonic() + GOODBYE_SECONDS
        for worker in self._server.workers.values():
            worker.send("stop", reason="the job is over")
        while time.monotonic() < deadline:
            if not any(worker.is_connected for worker in self._server.workers.values()):
                return
            self._wake.clear()
            await self._sleep(deadline - time.monotonic())

    # -- what outlives this process
    # -----------------------------------------------------------------

    def _load(self) -> int:
        """Take up the generation of an earlier coordinator of this job; returns its port, or 0."""
        path = self._settings.job_dir / "coordinator.json"
        if not path.exists():
            return 0
        state = json.loads(path.read_text())
        self._generation = int(state["generation"])
        self._members = tuple(state["members"])
        self._is_adopting_until = time.monotonic() + self._settings.forming_seconds
        return int(state["port"])

    def _save(self, port: int) -> None:
        path = self._settings.job_dir / "coordinator.json"
        state = {
            "address": self._settings.address,
            "port": port,
            "generation": self._generation,
            "members": list(self._members),
        }
        write_json(path, state)
