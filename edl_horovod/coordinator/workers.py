"""The workers as the coordinator knows them, the server that they call, and which of them fail.

Every worker is pinged again and again; one that makes no progress is ordered to end (D11). Rings
may fail to form although all members live, for instance if two hosts reach the coordinator but not
each other (D11). Then somebody is left out for a while, but no worker for ever.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edl_horovod.coordinator import messages, tls, wire
from edl_horovod.coordinator.decide import Candidate
from edl_horovod.coordinator.messages import Hello, Message, Pong
from edl_horovod.coordinator.settings import CoordinatorSettings, Timings
from edl_horovod.coordinator.wire import Channel, Listener, Refusals, Serve, WireError
from edl_horovod.job import hosts
from edl_horovod.job.events import EventLog, LogEvent, WorkerEvent

log = logging.getLogger(__name__)

MAX_UNAUTHENTICATED = 256
MAX_SLOTS = 10**hosts.MAX_SLOTS_DIGITS


class Report(NamedTuple):
    """What a worker's main thread does, by the answer of its listening thread to a ping.

    The answer shows that the process lives; its content shows where the main thread may be stuck.
    """

    worker: str
    """The worker's incarnation."""
    pong: Pong


@dataclass(eq=False)  # Compared by identity, and hashable.
class Worker:
    """One incarnation of a worker: one process, over all of its connections."""

    candidate: Candidate
    is_connected: bool = True
    is_ready: bool = False
    """Whether it is warm and in no ring, so that it can take a place at once."""
    leaving_since: float | None = None
    """When it was asked to end, or asked to be let go; None if it stays."""
    is_silent: bool = False
    """Whether it did not answer in time; it is not invited until it is heard again."""
    is_hung: bool = False
    """Whether it was ordered to end because it hangs; it is never invited again."""
    is_given_up: bool = False
    """Whether its launcher was asked to kill it; reset if it is heard again."""
    placed: int = 0
    """The last generation in which it got a place."""
    pong: Pong | None = None
    """Its last answer to a ping; see `current_report`."""
    pong_heard: float = 0.0
    """When that came, in seconds since the epoch."""
    pid: int = 0
    step: int = -1
    """Steps in its state when it was last outside a ring; -1 for a worker without state."""
    formed: int = 0
    """The last generation that it reported as formed."""
    has_state: bool = True
    """Whether it has all of its ring's state; false while it receives that in slices."""
    announced: int = 0
    """The generation that was last announced to it over this connection."""
    is_short: bool = False
    """Whether it was told over this connection that there are fewer workers than min_np."""
    was_lost: bool = False
    """Whether an event says that it is lost, since its last call."""
    is_dismissed: bool = False
    is_refused: bool = False
    """Whether it may not join a federated training, so that its end is no loss."""
    was_listed: bool = False
    """Whether host discovery has ever listed its host since the worker first called."""
    num_failed_formings: int = 0
    """Number of failed formings in a row of which it may be the cause."""
    left_out_seconds: float = 0.0
    """How long it was last held back after a ring had formed without it."""
    unreached: set[str] = field(default_factory=set)
    """Members that it could not reach since it was last in a formed ring; see `Ready`."""
    not_before: float = 0.0
    """When it may be invited again, on the monotonic clock; see `FailedPeers`."""
    num_unanswered: int = 0
    """Number of pings since it was last heard."""
    heard_at: float = field(default_factory=time.monotonic)
    connection: asyncio.StreamWriter | None = None
    channel: Channel | None = None

    def send(self, message: Message) -> None:
        """Queue a message; it is dropped if the connection is gone."""
        assert self.connection is not None
        assert self.channel is not None
        if self.is_connected and not self.connection.is_closing():
            self.connection.write(self.channel.seal(messages.encode(message)))

    def heard(self) -> None:
        """Note a sign of life."""
        self.is_given_up = False
        self.heard_at = time.monotonic()
        self.num_unanswered = 0

    def leave(self) -> None:
        """Note that it must end, if that is not noted yet."""
        if self.leaving_since is None:
            self.leaving_since = time.monotonic()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.num_unanswered += 1
        ping = messages.Ping(sent=time.time())
        if self.pong is not None:
            ping = replace(ping, heard=self.pong_heard, pong_sent=self.pong.sent)
        self.send(ping)

    def announce(self, generation: int) -> None:
        """Tell it, once per connection, that a ring of this generation replaces its ring."""
        if self.announced < generation:
            self.announced = generation
            self.send(messages.Change(generation=generation))

    def tell_shortage(self, is_short: bool) -> None:
        """Tell a worker that waits for a place whether there are too few, if it does not know."""
        if self.is_ready and self.is_short != is_short:
            self.is_short = is_short
            self.send(messages.Shortage(is_short=is_short))

    @property
    def is_answering(self) -> bool:
        """Whether it is connected, and answered the last pings in time."""
        return self.is_connected and not self.is_silent

    @property
    def is_there(self) -> bool:
        """Whether it answers, and was not ordered to end because it hangs."""
        return self.is_answering and not self.is_hung

    @property
    def is_leaving(self) -> bool:
        """Whether it must end; it may have to hand over the job's state first."""
        return self.leaving_since is not None

    @property
    def current_report(self) -> Report | None:
        """Its last report, if that is about the last ring in which it got a place; else None."""
        if self.pong is None or self.pong.generation != self.placed:
            return None
        return Report(self.name, self.pong)

    @property
    def address(self) -> str:
        """The IP address from which it called."""
        assert self.connection is not None
        return str(self.connection.get_extra_info("peername")[0])

    @property
    def name(self) -> str:
        """The incarnation."""
        return self.candidate.worker

    @property
    def label(self) -> str:
        """Host and slot, for people."""
        return f"{self.candidate.host}:{self.candidate.slot}"


def label_of(worker: str) -> str:
    """Host and slot of an incarnation, whose name ends with its pid and its begin."""
    return worker.rsplit(":", 2)[0]


class WorkerServer:
    """Accepts connections of workers, keeps `workers` up to date, and reports every change."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        *,
        on_message: Callable[[Worker, Message | None], None],
        on_lost: Callable[[Worker], None],
    ) -> None:
        """Prepare the server; `listener.start` starts it.

        Args:
            settings: The job's secret, and how long a connection may take to prove that it has it.
            on_message: Called with each message of a worker, `Hello` included; with None for a
                message of an unknown kind.
            on_lost: Called when a worker's connection ends.
        """
        self.workers: dict[str, Worker] = {}
        self.orders: dict[str, int] = {}
        """Numbers of all workers ever seen, in the order of their first calls."""
        self.tls = settings.tls
        """How connections are encrypted; None if they are not."""
        self.rendezvous: Serve | None = None
        """Serves the encrypted connections to the rendezvous, which come over this port, too."""
        self._secret, self._hello_seconds = settings.secret, settings.timings.hello_seconds
        self._on_message = on_message
        self._on_lost = on_lost
        self.listener = Listener(
            self._serve, max_line_bytes=wire.MAX_LINE_BYTES, max_unauthenticated=MAX_UNAUTHENTICATED
        )
        self._refusals = Refusals()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = None
        try:
            if self.tls is not None:
                await tls.accept(writer, self.tls)
                if tls.protocol(writer) == tls.RENDEZVOUS:
                    if self.rendezvous is not None:
                        await self.rendezvous(reader, writer)
                    return
            channel, hello = await self._greet(reader, writer)
            worker = self._admit(hello, channel, writer)
            self.listener.unauthenticated.leave(writer)
            self._on_message(worker, hello)
            while line := await reader.readline():
                message = messages.decode(channel.open(line))
                if worker.connection is not writer:
                    break  # The worker has a new connection, whose messages are newer.
                worker.heard()
                self._on_message(worker, message)
        except WireError as error:
            if worker is None:
                self._refusals.add(error)
            else:
                log.warning("connection of worker %s ended: %s", worker.label, error)
        except (OSError, TimeoutError, ValueError) as error:
            log.debug("connection ended: %r", error)
        finally:
            # A worker that came back over a new connection is not lost with its old one.
            if worker is not None and worker.connection is writer:
                worker.is_connected = False
                self._on_lost(worker)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, Hello]:
        wire.notice_vanished_host(writer.get_extra_info("socket"))
        server_nonce = wire.new_nonce()
        writer.write(wire.greeting(server_nonce))
        async with asyncio.timeout(self._hello_seconds):
            first = await reader.readline()
            if not first:
                raise ConnectionResetError("it hung up")
            client_nonce, party = wire.greeting_of(first)
            if self.tls is not None and (name := tls.holder(writer)) != tls.holder_of_party(party):
                raise WireError(f"it has the certificate of {name}, and calls itself {party!r}")
            nonces = {"server_nonce": server_nonce, "client_nonce": client_nonce}
            secret = wire.secret_of_party(self._secret, party) if party else self._secret
            channel = Channel(secret, **nonces, is_server=True)
            first_message = channel.open(await reader.readline())
        hello = messages.decode(first_message)
        if not isinstance(hello, Hello):
            raise WireError(f"the first message is {first_message['kind']!r}, not hello")
        if party and hello.host != party:
            raise WireError(f"it has the token of party {party!r}, and calls itself {hello.host!r}")
        return channel, hello

    def _admit(self, hello: Hello, channel: Channel, writer: asyncio.StreamWriter) -> Worker:
        name = hello.worker
        if not 0 <= hello.slot < MAX_SLOTS:
            raise WireError(f"{hello.slot} is no slot of a host")
        worker = self.workers.get(name)
        if worker is not None and worker.candidate.host != hello.host:
            # A party could take the place of another one otherwise.
            raise WireError(f"worker {worker.label} calls from another host, {hello.host!r}")
        if worker is None:
            order = self.orders.setdefault(name, max(self.orders.values(), default=0) + 1)
            candidate = Candidate(worker=name, host=hello.host, slot=hello.slot, order=order)
            worker = self.workers[name] = Worker(candidate)
        elif worker.connection is not None:
            worker.connection.close()
        worker.is_connected = True
        worker.announced, worker.is_short, worker.is_dismissed = 0, False, False
        worker.connection, worker.channel = writer, channel
        worker.heard()
        return worker


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision about a worker that has made no progress for too long."""

    worker: str
    phase: str
    """What the worker was doing, for people."""
    message: str
    seconds: float
    """How long it has made no progress."""
    is_end: bool = True
    """Whether it must end; false if no other rank waits for it, so that it may go on."""


class Liveness:
    """Pings the workers, and acts on missing answers and on reports without progress."""

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
        self._stall_seconds = settings.elastic.stall_seconds
        self._timings = settings.timings
        self._members = members
        self._on_silent = on_silent
        self._warned: dict[str, str] = {}

    async def watch(self) -> None:
        """Ping all workers at intervals and act on the answers, until cancelled."""
        while True:
            for worker in list(self._server.workers.values()):
                self._check_silence(worker)
                worker.ping()
            self._check_progress()
            await asyncio.sleep(self._timings.ping_seconds)

    def _check_silence(self, worker: Worker) -> None:
        # Counted in unanswered pings: after a pause of this very process, no worker seems silent.
        silence = worker.num_unanswered * self._timings.ping_seconds
        if not worker.is_connected or silence < self._timings.silence_seconds:
            return
        if not worker.is_silent:
            worker.is_silent = True
            log.warning("worker %s does not answer", worker.label)
            self._on_silent(worker)
        # Only if other members answer: the last ones have the job's state, and may come back.
        others = [w for w in self._members() if w.is_answering]
        patience = min(self._timings.dead_seconds, self._stall_seconds)
        patience = max(self._timings.silence_seconds, patience)
        if silence >= patience and others and not worker.is_given_up:
            worker.is_given_up = True
            self._report(worker, f"no sign of life for {silence:.0f} s", silence)

    def _check_progress(self) -> None:
        members = self._members()
        ring = frozenset(members)
        connected = [w for w in self._server.workers.values() if w.is_connected and not w.is_ready]
        verdicts = find_hung(
            [worker.current_report for worker in members],
            [worker.current_report for worker in connected if worker not in ring],
            stall_seconds=self._stall_seconds,
        )
        for verdict in verdicts:
            self._apply(verdict, self._server.workers[verdict.worker], members)

    def _apply(self, verdict: Verdict, worker: Worker, members: Sequence[Worker]) -> None:
        if verdict.is_end and not worker.is_hung:
            worker.is_hung = True
            # Before its end, which breaks the ring: it tells where the others are until then.
            for other in members:
                if other is not worker:
                    other.send(messages.Dump(reason=f"worker {worker.label} hangs"))
            self._report(worker, verdict.message, verdict.seconds)
            worker.send(messages.End(reason=verdict.message))
        elif not verdict.is_end and self._warned.get(worker.label) != verdict.phase:
            self._warned[worker.label] = verdict.phase
            self._events.write(LogEvent(message=f"worker {worker.label}: {verdict.message}"))
            log.warning("worker %s: %s", worker.label, verdict.message)
            worker.send(messages.Dump(reason=verdict.message))

    def _report(self, worker: Worker, message: str, seconds: float) -> None:
        """Report that a worker hangs; its launcher kills it if it does not end by itself."""
        self._events.write(
            WorkerEvent(
                worker=worker.label,
                state="hung",
                pid=worker.pid,
                message=message,
                seconds=round(seconds, 1),
            )
        )
        log.warning("worker %s hangs: %s", worker.label, message)


def find_hung(
    members: Sequence[Report | None], outsiders: Sequence[Report | None], *, stall_seconds: float
) -> list[Verdict]:
    """Find workers that hang: a rank must end only if others have waited for it for too long.

    All ranks of a ring begin a step together, so the others' waiting time is how much longer this
    rank takes than they did. A step that is long for all ranks makes none of them a suspect.

    Args:
        members: Reports of the ring's members, in the order of their ranks; None for a member
            without a report yet.
        outsiders: Reports of workers that should have left an earlier ring.
        stall_seconds: The longest time without progress.
    """
    hung = []
    for report in outsiders:
        # Without a ring, workers in an older one may be the only ones that have the job's state.
        if not members or report is None or report.pong.seconds < stall_seconds:
            continue
        if (pong := report.pong).doing in ("works", "joins"):
            message = f"did not come back to the ring for {pong.seconds:.0f} s: {pong.phase}"
            hung.append(
                Verdict(
                    worker=report.worker, phase=pong.phase, message=message, seconds=pong.seconds
                )
            )
    reports = [report for report in members if report is not None]
    if len(reports) < len(members) or any(r.pong.doing not in ("works", "waits") for r in reports):
        return hung
    return hung + _hung_members(reports, stall_seconds)


def _hung_members(reports: Sequence[Report], stall_seconds: float) -> list[Verdict]:
    stalled = [report for report in reports if report.pong.seconds >= stall_seconds]
    late = [report for report in stalled if report.pong.doing == "works"]
    waiting = [report for report in stalled if report.pong.doing == "waits"]
    if len(waiting) == len(reports) > 1:
        # If one rank ends, the collective fails on all others, which have the state. Ending all
        # ranks would lose it.
        return [_odd_one(waiting)]
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
            seconds=pong.seconds,
            is_end=bool(waiting),
        )
        for worker, pong in late
    ]


def _odd_one(waiting: Sequence[Report]) -> Verdict:
    """The rank to end where all wait: the first that waits elsewhere than most, or else the last.

    If all wait in the same collective, no single rank is to blame; the transport may have failed.
    """
    waits = f"all {len(waiting)} ranks waited for each other"
    (usual, _), *others = Counter(report.pong.phase for report in waiting).most_common()
    if not others:
        worker, pong = waiting[-1]
        end = "the last one ends, which frees the others"
        message = f"{waits} for {pong.seconds:.0f} s in {usual}; {end}"
    else:
        worker, pong = next(report for report in waiting if report.pong.phase != usual)
        message = f"{waits} for {pong.seconds:.0f} s, it in {pong.phase} and most in {usual}"
    return Verdict(worker=worker, phase=pong.phase, message=message, seconds=pong.seconds)


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
    named = Counter(name for worker in members for name in worker.unreached)
    by_host: dict[str, list[Worker]] = {}
    for worker in pool:
        by_host.setdefault(worker.candidate.host, []).append(worker)
    groups = list(by_host.values()) if len(by_host) > 1 else [[worker] for worker in pool]

    def num_complaints(worker: Worker) -> int:
        # A party of a federated training is named, and others have their addresses.
        return named[worker.address] + named[worker.candidate.host]

    # Ranks are ordered by the age of hosts, so of equally suspected hosts the last one is taken.
    worst = max(range(len(groups)), key=lambda i: (num_complaints(groups[i][0]), i))
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
                doublings = min(worker.num_failed_formings - 2, 10)
                wait = self._timings.held_back_seconds * 2**doublings
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
