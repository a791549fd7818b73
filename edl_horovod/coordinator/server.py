"""One job's coordinator: forms generation after generation until there is a result (D8, D10).

Its roster decides which workers may be in the ring now, and which are dismissed.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import replace

from edl_horovod.coordinator import messages, saved
from edl_horovod.coordinator.autoscale import RingLimit
from edl_horovod.coordinator.decide import choose_members, in_order_of_ranks
from edl_horovod.coordinator.forming import Forming, Wakeup
from edl_horovod.coordinator.messages import Stop
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.workers import FailedPeers, Liveness, Worker, WorkerServer, label_of
from edl_horovod.errors import NotEnoughWorkers, PartyError, error_kind
from edl_horovod.job import hosts, outcome
from edl_horovod.job.events import EventLog, GenerationEvent, JobEvent, LogEvent, WorkerEvent
from edl_horovod.job.hosts import num_workers
from edl_horovod.job.outcome import Failure, Outcome, Success

log = logging.getLogger(__name__)


class Coordinator:
    """Decides who is in the ring. One loop forms rings; callbacks only note changes and wake it."""

    def __init__(self, settings: CoordinatorSettings, events: EventLog) -> None:
        self._settings = settings
        self._elastic = settings.elastic
        self._timings = settings.timings
        self._file = settings.job_dir.coordinator_state
        self._events = events
        self._server = WorkerServer(settings, on_message=self._on_message, on_lost=self._on_lost)
        self._limit = RingLimit(settings, events, on_change=self._change_for)
        self._roster = Roster(self._server, settings, events, self._limit)
        self._generation = 0
        self._members: tuple[str, ...] = ()
        self._reason = "start"
        self._outcome: Outcome | None = None
        self._wakeup = Wakeup()
        self._forming = Forming(self._server, self._wakeup, settings)
        self._failed_peers = FailedPeers(events, min_np=self._elastic.min_np, timings=self._timings)
        self._liveness = Liveness(
            self._server,
            settings,
            events,
            members=lambda: self._roster.workers(self._members),
            on_silent=lambda worker: self._change_for(
                f"{worker.label} silent for {self._timings.silence_seconds:.0f} s"
            ),
        )
        self._too_few_since: float | None = time.monotonic()
        self._first_warm_at: float | None = None
        self._adopting_until = 0.0
        """Until then members that lost their connection may call again, and their ring stays."""
        self._ending_since: float | None = None
        self._has_ended = False
        """Whether connections end because this coordinator does."""
        self._unheard: set[str] = set()
        """Members of the adopted ring that have not called this coordinator yet."""
        self._missed: set[str] = set()
        """Those of them that were reported as lost because of that."""
        self._proven: tuple[str, ...] = ()
        """Members of the last ring that formed."""

    def end_soon(self) -> None:
        """End without an outcome, for instance because this process was asked to terminate.

        Workers that train are left alone. But often the workers were asked to end as well, as when
        a machine shuts down, and they must be dismissed first: so `_can_exit` waits for a moment to
        see whether they leave. If all leave, none of them waits for a successor to take over the
        job's state: they have saved it in a checkpoint.
        """
        if self._ending_since is None:
            self._ending_since = time.monotonic()
            self._roster.is_ending = True
            self._wakeup.wake()
            asyncio.get_running_loop().call_later(self._timings.fellow_seconds, self._wakeup.wake)

    async def run(self) -> Outcome | None:
        """Serve until the job's outcome is known, write it to the job's directory and return it.

        Returns None if this coordinator must end before (`end_soon`). A coordinator that is started
        again for the same job reads its generation and its port, and adopts the ring, which trained
        on without it.

        Raises:
            OSError: The job's directory cannot be written, or the address is taken.
            NotEnoughWorkers: Too few workers came in time. Those that came stay, and the next
                coordinator waits again.
        """
        port = self._load() or self._settings.port
        port = await self._server.listener.start(self._settings.address, port)
        with contextlib.closing(self._server.listener):
            try:
                return await self._serve(port)
            finally:
                self._has_ended = True

    async def _serve(self, port: int) -> Outcome | None:
        saved.save(self._file, self._ring(port))
        watchers = (self._watch_hosts(), self._liveness.watch(), self._limit.watch())
        watch = [asyncio.create_task(watcher) for watcher in watchers]
        try:
            while self._outcome is None and not self._can_exit():
                await self._advance(port)
        finally:
            for task in watch:
                task.cancel()
            if self._outcome is None:
                saved.save_change(self._file, self._ring(port))
        if self._outcome is None:
            log.info("ending; %d members train on", len(self._members))
            return None
        log.info("job %s", "finished" if isinstance(self._outcome, Success) else "failed")
        # Saved before the workers are dismissed: if this process dies then, its successor must
        # not start the job again.
        outcome.save(self._settings.job_dir.result, self._outcome)
        await self._say_goodbye()
        return self._outcome

    # -- callbacks: note what happened, and wake the loop

    def _on_message(self, worker: Worker, message: messages.Message | None) -> None:
        was_silent, worker.is_silent = worker.is_silent, False
        match message:
            case messages.Hello():
                self._on_hello(worker, message)
            case messages.Ready():
                self._on_ready(worker, message)
            case messages.Formed():
                worker.formed, worker.has_state = message.generation, message.has_state
            case messages.Leaving():
                worker.leave()
                self._reason = f"{worker.label} leaves"
            case messages.Finished():
                self._on_finished(worker, message.result)
            case messages.Failed():
                self._on_failed(worker, message.error)
            case messages.Pong():
                worker.pong, worker.pong_heard = message, time.time()
            case messages.Progress() if not was_silent:
                return  # It comes every second from every member, and needs no action.
        self._wakeup.wake()

    def _on_hello(self, worker: Worker, hello: messages.Hello) -> None:
        # Generations only grow, even if coordinator.json was lost.
        self._generation = max(self._generation, hello.generation)
        worker.is_ready = hello.is_ready
        worker.pid, worker.placed = hello.pid, hello.generation
        if hello.is_leaving:
            worker.leave()
        worker.formed, worker.has_state = max(worker.formed, hello.formed), hello.has_state
        if refusal := self._refusal_of(worker):
            worker.leave()
            worker.is_dismissed = worker.is_refused = True
            # Not an event of the worker: a party of this name may be in the ring.
            self._events.write(LogEvent(message=str(refusal)))
            log.warning("%s", refusal)
            kind, message = error_kind(refusal), str(refusal)
            worker.send(messages.Stop(reason=message, is_over=True, error=kind, message=message))
            return
        self._unheard.discard(worker.name)
        worker.was_lost |= worker.name in self._missed
        self._missed.discard(worker.name)
        if worker.is_ready:
            # Its slot has one process at a time, so the member before it has ended.
            self._report_unheard(worker.label)
            worker.step = hello.step
            self._first_warm_at = self._first_warm_at or time.monotonic()
            self._report(worker, "warm")
            self._reason = f"{worker.label} is warm"
        elif worker.was_lost:
            self._report(worker, "returned", "only its connection to the coordinator was lost")
        worker.was_lost = False
        log.info("worker %s is %s", worker.label, "warm" if worker.is_ready else "back")
        if self._outcome is not None:
            worker.send(messages.Stop(reason="the job is over", is_over=True))

    def _on_ready(self, worker: Worker, ready: messages.Ready) -> None:
        worker.is_ready, worker.step = True, ready.step
        if ready.reason:
            self._reason = ready.reason
            worker.unreached.update(ready.unreached)
            log.info("worker %s left the ring: %s", worker.label, ready.reason)

    def _refusal_of(self, worker: Worker) -> PartyError | None:
        """Why a worker may not join a federated training; None if it may, or in other jobs."""
        parties, name = self._settings.config.federated.parties, worker.candidate.host
        if not parties:
            return None
        if name not in parties:
            return PartyError(
                f"There is no party {name!r} in this federated training.",
                received={"federated.parties": parties},
                hint="Use a token of this training, or add the party at the coordinator.",
            )
        others = (w for w in self._server.workers.values() if w.candidate.host == name)
        if any(w is not worker and w.is_there and not w.is_leaving for w in others):
            return PartyError(
                f"A party {name!r} takes part already.",
                received={"federated.party": name},
                hint="Give each party a token of its own. If this party was started again, wait"
                " some seconds until the coordinator notices that the earlier process is gone.",
            )
        return None

    def _on_finished(self, worker: Worker, result: Success) -> None:
        if self._settings.config.federated.parties and worker.name not in self._members:
            log.warning("worker %s is not in the ring, so it cannot finish the job", worker.label)
            return
        self._end(result)

    def _on_failed(self, worker: Worker, failure: Failure) -> None:
        is_party = bool(self._settings.config.federated.parties)
        if not is_party and (not self._members or worker.name in self._members):
            self._end(replace(failure, worker=worker.label))
            return
        # A newcomer may fail by itself, for instance if its host lacks the data. That must not end
        # a ring that trains. Nor must a party of a federated training, which has data of its own.
        worker.leave()
        self._report(worker, "failed", failure.message)
        log.warning("worker %s cannot join: %s", worker.label, failure.message)
        worker.send(messages.Stop(reason="it failed, and the ring goes on without it"))

    def _on_lost(self, worker: Worker) -> None:
        if self._outcome is None and not self._has_ended and not worker.is_refused:
            state = "left" if worker.is_leaving else "lost"
            self._report(worker, state)
            worker.was_lost = state == "lost"
            log.info("worker %s is gone", worker.label)
            self._reason = f"{worker.label} {state}"
        if worker.name not in self._members:
            self._server.workers.pop(worker.name, None)
        elif not any(other.is_connected for other in self._roster.workers(self._members)):
            # All members are gone at once: more likely the network failed, and their ring trains
            # on. They may call again within this time.
            self._adopting_until = time.monotonic() + self._timings.return_seconds
        self._wakeup.wake()

    def _report(self, worker: Worker, state: str, message: str = "") -> None:
        self._events.write(WorkerEvent(worker=worker.label, state=state, message=message))

    def _report_unheard(self, label: str = "") -> None:
        """Report adopted members that did not call as lost; a label limits this to its slot."""
        for name in sorted(self._unheard):
            member = label_of(name)
            if label in ("", member):
                self._unheard.remove(name)
                self._missed.add(name)
                message = "it did not call the new coordinator"
                self._events.write(WorkerEvent(worker=member, state="lost", message=message))
                log.info("worker %s is gone: %s", member, message)
                self._reason = f"{member} lost"

    def _change_for(self, reason: str) -> None:
        self._reason = reason
        self._wakeup.wake()

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._wakeup.is_over = True

    async def _watch_hosts(self) -> None:
        file = hosts.HostsFile(self._settings.job_dir.hosts)
        while True:
            if (wanted := file.change()) is not None:
                self._roster.wanted = wanted
                self._change_for("hosts changed")
            await asyncio.sleep(self._timings.hosts_poll_seconds)

    # -- the loop: compare, then act

    def _can_exit(self) -> bool:
        """Whether `end_soon` was called, and no worker that leaves still needs this coordinator."""
        if self._ending_since is None:
            return False
        may_yet_leave = time.monotonic() < self._ending_since + self._timings.fellow_seconds
        answering = [w for w in self._server.workers.values() if w.is_answering]
        return not any(worker.is_leaving or may_yet_leave for worker in answering)

    async def _advance(self, port: int) -> None:
        """Compare the ring with the wanted one; act on the difference, or wait for one."""
        self._wakeup.clear()
        self._roster.dismiss_unwanted(self._members)
        self._recall()
        target = self._roster.target(self._members)
        members = self._roster.workers(self._members)
        is_whole = bool(members) and all(w.is_connected and not w.is_ready for w in members)
        num_connected = sum(worker.is_connected for worker in members)
        is_complete = bool(self._roster.wanted) and num_connected == len(self._members)
        if is_complete:
            self._adopting_until = 0.0
        elif time.monotonic() < self._adopting_until:
            await self._wakeup.sleep(0.1)
            return
        self._report_unheard()
        if target == self._members and is_whole:
            self._too_few_since = None
            await self._wakeup.sleep(self._roster.until_next())
            return
        if len(target) < self._needed():
            # A ring below min_np must not train on, so its members leave it and wait.
            if self._members:
                await self._dissolve()
            elif self._roster.is_ending:
                await self._wakeup.sleep(self._roster.until_next())
            if not self._roster.is_ending:
                await self._wait_for_more(len(target))
            return
        await self._change(port)

    def _needed(self) -> int:
        """The least number of ranks that may form a ring now.

        This is min_np, except that the first ring waits for a while for all requested workers.
        """
        if self._first_ring_wait_seconds() <= 0:
            return self._elastic.min_np
        wanted = sum(self._roster.wanted.values())
        most = min(self._settings.config.launch.np, wanted, self._limit.most)
        return max(self._elastic.min_np, most)

    def _first_ring_wait_seconds(self) -> float:
        """How much longer the first ring waits for all requested workers; 0 for later rings.

        The time is counted from the first warm worker: before it no ring could form.
        """
        if self._generation > 0:
            return 0.0
        patience = min(self._timings.first_ring_seconds, self._elastic.wait_seconds)
        if self._first_warm_at is None:
            return patience
        return max(0.0, self._first_warm_at + patience - time.monotonic())

    async def _wait_for_more(self, num_found: int) -> None:
        now = time.monotonic()
        for worker in self._server.workers.values():
            worker.tell_shortage(num_found < self._elastic.min_np)
        if num_found >= self._elastic.min_np:
            # Enough for a ring, but the first one still waits for the other requested workers.
            self._too_few_since = None
            await self._wakeup.sleep(self._first_ring_wait_seconds())
            return
        if self._too_few_since is None:
            self._too_few_since = now
            message = f"{num_found} workers, {self._elastic.min_np} needed"
            self._events.write(JobEvent(state="waiting", message=message))
            log.warning("the ring waits: %s", message)
        left = self._too_few_since + self._elastic.wait_seconds - now
        if left <= 0:
            raise NotEnoughWorkers(
                f"The ring had fewer than elastic.min_np={self._elastic.min_np} workers for "
                f"{self._elastic.wait_seconds:.0f} s.",
                received=str(num_found),
                hint="Look at the workers' logs, add slots, or lower elastic.min_np.",
            )
        await self._wakeup.sleep(min(left, 1.0, self._roster.until_next() or 1.0))

    def _recall(self) -> None:
        """Tell workers that still train in a former ring to leave it.

        A worker that was disconnected or silent may not have noticed that its ring was replaced,
        least of all if it is alone in it, because then no collective fails.
        """
        for worker in self._server.workers.values():
            if not worker.is_ready and worker.name not in self._members:
                worker.announce(self._generation + 1)

    async def _dissolve(self) -> None:
        """End the ring without forming another; its members stay warm and wait."""
        await self._forming.gather(self._roster.workers(self._members), self._generation + 1)
        self._forget_ring()

    def _forget_ring(self) -> None:
        """Forget the members of the ring, and those of them altogether that are gone."""
        for worker in self._roster.workers(self._members):
            if not worker.is_connected:
                self._server.workers.pop(worker.name)
        self._members = ()

    async def _change(self, port: int) -> None:
        """Form the next generation: gather the members, ping all workers, assign ranks, wait."""
        began = time.monotonic()
        old_size, reason = len(self._members), self._reason
        members = self._roster.workers(self._members)
        asked_at = await self._forming.ask_for_sign_of_life(members)
        await self._forming.gather(members, self._generation + 1)
        if time.monotonic() - asked_at > self._timings.sign_of_life_seconds:
            asked_at = await self._forming.ask_for_sign_of_life(members)  # A step was long.
        if silent := [worker.label for worker in members if worker.is_silent]:
            reason = f"no sign of life from {', '.join(silent)}"
        if self._outcome is not None:
            return
        target = self._roster.responsive_members(self._members, asked_at)
        self._forget_ring()
        if len(target) < self._elastic.min_np:
            return
        self._generation += 1
        self._members = target
        members = self._roster.workers(target)
        # Saved concurrently: the ring must not wait for a disk that is busy with a checkpoint.
        ring = self._ring(port)
        saving = asyncio.create_task(asyncio.to_thread(saved.save_change, self._file, ring))
        try:
            is_formed = await self._forming.form(members, self._generation)
        finally:
            await saving
        if is_formed:
            self._too_few_since, self._proven = None, target
            self._failed_peers.formed(members, self._server.workers.values())
        else:
            self._failed_peers.failed(members, self._proven, began)
        event = GenerationEvent(
            generation=self._generation,
            size=len(target),
            members=tuple(worker.label for worker in members),
            reason=reason,
            is_formed=is_formed,
            seconds=round(time.monotonic() - began, 4),
        )
        self._events.write(event)
        sizes = f"{old_size} -> {event.size} ranks ({reason})"
        end = "" if is_formed else ", not formed"
        log.info("generation %d: %s%s", event.generation, sizes, end)

    async def _say_goodbye(self) -> None:
        """Tell all workers that the job is over, and wait a few seconds for them to end."""
        deadline = time.monotonic() + self._timings.goodbye_seconds
        for worker in self._server.workers.values():
            worker.send(messages.Stop(reason="the job is over", is_over=True))
        while time.monotonic() < deadline:
            if not any(worker.is_connected for worker in self._server.workers.values()):
                return
            self._wakeup.clear()
            await self._wakeup.sleep(deadline - time.monotonic())

    # -- the saved ring, for the next coordinator of the job

    def _load(self) -> int:
        """Adopt the ring of the job's former coordinator; returns its port, or 0 without one."""
        ring = saved.load(self._file)
        if ring is None:
            return 0
        self._generation, self._members, self._proven = ring.generation, ring.members, ring.members
        self._unheard = set(ring.members)
        self._server.orders.update(zip(ring.members, ring.orders, strict=True))
        self._adopting_until = time.monotonic() + self._elastic.forming_seconds
        return ring.port

    def _ring(self, port: int) -> saved.SavedRing:
        return saved.SavedRing(
            address=self._settings.address,
            port=port,
            generation=self._generation,
            members=self._members,
            orders=tuple(self._server.orders[name] for name in self._members),
        )


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
        self._spares = settings.elastic.spares
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
        formed = [w for w in ring if w.is_answering and not w.is_ready and w.formed == w.placed]
        has_ring = bool(ring) and len(formed) == len(ring)
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
        workers = self._server.workers.values()
        moments = [worker.not_before for worker in workers]
        moments += [w.leaving_since + self._leaver_seconds for w in workers if w.leaving_since]
        return min((moment - now for moment in moments if moment > now), default=None)

    def _most_advanced(self) -> Worker | None:
        """The most advanced worker outside a ring; of several with the same steps the oldest."""
        workers = self._server.workers.values()
        holders = [w for w in workers if w.step >= 0 and w.is_ready and w.is_there]
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
        others = (w for w in self._server.workers.values() if w.step >= worker.step)
        stays = any(_is_usable(other) and not self._is_unwanted(other) for other in others)
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
        others = self.workers(chosen)[: self._limit.bound - 1]
        return in_order_of_ranks([*(w.candidate for w in others), holder.candidate])

    def _may_hold(self, worker: Worker) -> bool:
        """Whether a worker can stay until another one has the job's state, and one may come."""
        now = time.monotonic()
        if not worker.is_there or worker.is_dismissed or worker.not_before > now:
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
    return worker.is_there and not worker.is_leaving and worker.not_before <= time.monotonic()
