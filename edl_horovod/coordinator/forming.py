"""Forms one generation: gathers its members, sees who lives, gives places, waits for all."""

import asyncio
import logging
import time
from collections.abc import Sequence

from edl_horovod.coordinator.decide import assign_ranks
from edl_horovod.coordinator.messages import Ping
from edl_horovod.coordinator.rendezvous import Rendezvous
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.workers import Worker, WorkerServer

__all__ = ["Forming", "Wakeup"]

log = logging.getLogger(__name__)

MAX_MISSED_PINGS = 4
"""In a row, while a ring forms; after that the others wait for that member no longer."""


class Wakeup:
    """Lets one loop sleep until something changes, or until the job is over."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.is_over = False

    def wake(self) -> None:
        """Report a change."""
        self._changed.set()

    def clear(self) -> None:
        """Forget the changes until now: they are known."""
        self._changed.clear()

    async def sleep(self, seconds: float | None) -> None:
        """Wait for a change after `clear`, or until the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


class Forming:
    """The steps of a forming; each of them ends at once when the job is over."""

    def __init__(
        self,
        server: WorkerServer,
        wakeup: Wakeup,
        settings: CoordinatorSettings,
    ) -> None:
        self._server = server
        self._wakeup = wakeup
        self._timings = settings.timings
        self._address = settings.address
        self._forming_seconds = settings.forming_seconds

    async def gather(self, members: Sequence[Worker], generation: int) -> None:
        """Tell all members to leave the ring after their step, and wait a limited time for them."""
        deadline = None
        while not self._wakeup.is_over:
            waiting = [worker for worker in members if worker.is_answering and not worker.is_ready]
            for worker in waiting:
                worker.announce(generation)
            if not waiting:
                return
            now = time.monotonic()
            if deadline is None and any(worker.is_ready for worker in members):
                deadline = now + self._forming_seconds + self._timings.forming_margin_seconds
            if deadline is not None and now >= deadline:
                for worker in waiting:
                    worker.is_silent = True
                    log.warning("worker %s did not leave the ring in time", worker.label)
                return
            self._wakeup.clear()
            await self._wakeup.sleep(0.5 if deadline is None else min(0.5, deadline - now))

    async def ask_for_sign_of_life(self, members: Sequence[Worker]) -> float:
        """Ping everyone, and mark those who do not answer soon as silent; returns when it asked."""
        asked_at = time.monotonic()
        asked = [w for w in self._server.workers.values() if w.is_answering]
        ring = frozenset(members)
        for worker in self._server.workers.values():
            worker.ping()
        while not self._wakeup.is_over:
            missing = [w for w in asked if w.is_connected and w.heard_at < asked_at]
            holders = [w for w in asked if w.is_connected and w in ring and w.has_state]
            # Only they have the job's state: where none of them answers, newcomers would begin
            # at step 0, so they get more time.
            is_all = bool(holders) and all(w.heard_at < asked_at for w in holders)
            patience = (
                self._timings.silence_seconds if is_all else self._timings.sign_of_life_seconds
            )
            left = asked_at + patience - time.monotonic()
            if not missing or left <= 0:
                for worker in missing:
                    worker.is_silent = True
                    log.warning("worker %s gave no sign of life", worker.label)
                break
            self._wakeup.clear()
            await self._wakeup.sleep(left)
        return asked_at

    async def form(self, members: Sequence[Worker], generation: int) -> bool:
        """Give the members their places, and wait until all of them have formed the ring.

        Returns:
            Whether they did.
        """
        rendezvous = Rendezvous(
            self._address,
            wait_seconds=self._forming_seconds,
            hello_seconds=self._timings.hello_seconds,
        )
        async with rendezvous:
            places = assign_ranks(
                [worker.candidate for worker in members],
                generation=generation,
                step=max(member.step for member in members),
                rendezvous_address=self._address,
                rendezvous_port=rendezvous.port,
                rendezvous_token=rendezvous.token,
            )
            for worker, place in zip(members, places, strict=True):
                worker.is_ready = False
                worker.placed = generation
                worker.send(place)
            return await self._watch_over(members, generation)

    async def _watch_over(self, members: Sequence[Worker], generation: int) -> bool:
        """Ask again and again for a sign of life, until all have formed the ring or one cannot."""
        deadline = time.monotonic() + self._forming_seconds
        missed = {worker.name: 0 for worker in members}
        while not self._wakeup.is_over and time.monotonic() < deadline:
            asked_at = time.monotonic()
            for worker in members:
                # Not `ping`: what that counts are pings that are further apart.
                worker.send(Ping())
            until = min(asked_at + self._timings.forming_ping_seconds, deadline)
            while not self._wakeup.is_over and (left := until - time.monotonic()) > 0:
                if all(worker.formed == generation for worker in members):
                    return True
                if any(not worker.is_connected or worker.is_ready for worker in members):
                    return False
                self._wakeup.clear()
                await self._wakeup.sleep(left)
            for worker in members:
                missed[worker.name] += 1
                if worker.heard_at >= asked_at:
                    missed[worker.name] = 0
            silent = [w for w in members if missed[w.name] >= MAX_MISSED_PINGS]
            for worker in silent:
                worker.is_silent = True
                log.warning("worker %s gives no sign of life while the ring forms", worker.label)
            if silent:
                return False
        return False
