"""Forms one generation: gathers its members, pings them, assigns places, waits for all.

Gloo's members find each other through a key-value server, one for each generation. A member of our
Horovod (docs/adr/0003) sends it one request for each of its groups, `POST /scope/rank/size`, with
the addresses on which it listens for each other member. Once all members have sent theirs, the
answer has the addresses on which the others listen for this member.

A released Horovod (`horovod/common/gloo/http_store.cc`) sends PUT, GET and DELETE of `/scope/key`,
several for each other member, and takes a 404 for a key that is not there yet. Its own server
answers the 404 at once and every member asks again every 10 ms; here a GET waits for its key.

A ring that cannot be completed is abandoned: all waiting requests are answered at once without a
value, so Gloo raises an error instead of waiting for its time-out.

Horovod's client cannot authenticate itself, but its server's address may contain a path. So the
paths of each generation begin with a token, which the members get over authenticated connections.
Between the parties of a federated training, requests come through their own proxies
(`ring.membership.links`), encrypted and to the port of the coordinator. All of them know the token,
so each speaks for the rank of its certificate alone.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from edl_horovod.coordinator import tls
from edl_horovod.coordinator.decide import assign_ranks
from edl_horovod.coordinator.messages import Ping
from edl_horovod.coordinator.settings import CoordinatorSettings, Timings
from edl_horovod.coordinator.wire import Listener, WireError
from edl_horovod.coordinator.workers import Worker, WorkerServer

log = logging.getLogger(__name__)

MAX_UNAUTHENTICATED = 1024
"""As many as may be accepted at once: a member's request comes with its connection."""
MAX_LINE_BYTES = 4096

MAX_BODY_BYTES = 1 << 20
MAX_HEADERS = 64
MAX_KEYS = 1 << 16
"""A member puts two keys a group: a few thousand members stay far below."""
MAX_TOTAL_BYTES = 256 << 20
"""Limit for all values together: a member's value grows by some 150 bytes for each other member."""
LINGER_SECONDS = 10.0
MAX_MISSED_PINGS = 4
"""Unanswered pings in a row at which the forming is given up because of that member."""


class Rendezvous:
    """One generation's server; use it in an `async with`."""

    def __init__(
        self,
        host: str,
        *,
        wait_seconds: float,
        hello_seconds: float = Timings.hello_seconds,
        linger_seconds: float = LINGER_SECONDS,
        shared: WorkerServer | None = None,
        parties: Sequence[str] = (),
    ) -> None:
        """Prepare the server; entering the context starts it.

        Args:
            host: Address to bind.
            wait_seconds: How long a GET waits for its key before it is answered with 404.
            hello_seconds: How long a connection may take to send a first line with the token.
            linger_seconds: How long the port stays open after the context, for members of an
                abandoned ring that ask again.
            shared: The server whose port it shares, until the next rendezvous; None for a port of
                its own.
            parties: The parties in the order of their ranks, for a shared server.
        """
        self._host = host
        self._wait_seconds = wait_seconds
        self._hello_seconds = hello_seconds
        self._linger_seconds = linger_seconds
        self.token = secrets.token_hex(16)
        """First part of all paths; Horovod may add a colon and more to it."""
        self._shared, self._parties = shared, tuple(parties)
        limits = {"max_line_bytes": MAX_LINE_BYTES, "max_unauthenticated": MAX_UNAUTHENTICATED}
        self._listener = shared.listener if shared is not None else Listener(self._serve, **limits)
        self.port = 0
        """The port that was bound; 0 for a shared one, which the members know."""
        self._values: dict[str, bytes] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._num_bytes = 0
        self._arrived = asyncio.Condition()
        self._is_abandoned = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Rendezvous":
        if self._shared is not None:
            self._shared.rendezvous = self._serve
        else:
            self.port = await self._listener.start(self._host)
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None and self._shared is None:
            self._listener.close()  # The coordinator ends, and with it its event loop.
        elif self._shared is None:
            # Later, because Horovod's client would try a closed port three times, over 1.5 s.
            self._closing = asyncio.create_task(asyncio.sleep(self._linger_seconds))
            # A callback comes even if the event loop ends before the task has begun.
            self._closing.add_done_callback(lambda _: self._listener.close())
        await self.abandon()

    async def abandon(self) -> None:
        """Make every member that still waits fail at once."""
        async with self._arrived:
            self._is_abandoned = True
            self._arrived.notify_all()
        for exchange in self._exchanges.values():
            exchange.is_over.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A member may die in the middle of a request; the membership loop hears of it.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(self._hello_seconds):
                method, key = await self._first_line(reader)
            self._listener.unauthenticated.leave(writer)
            async with asyncio.timeout(self._wait_seconds + 5):
                holder = tls.holder(writer) if self._shared is not None else ""
                status, body = await self._answer(reader, method, key, holder)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()

    async def _first_line(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        """Read the method and key of a request.

        Raises:
            ValueError: It is not a request with this generation's token; it is not answered.
        """
        method, path, _ = (await reader.readline()).decode().split()
        _, token, key = path.split("/", 2)
        if not hmac.compare_digest(token.partition(":")[0].encode(), self.token.encode()):
            raise ValueError("not a path of this generation")
        return method, key

    async def _answer(
        self, reader: asyncio.StreamReader, method: str, key: str, holder: str
    ) -> tuple[str, bytes]:
        length = 0
        for _ in range(MAX_HEADERS):
            header = (await reader.readline()).decode().strip()
            if not header:
                break
            name, _, value = header.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        if length > MAX_BODY_BYTES:
            return "413 Payload Too Large", b""
        body = await reader.readexactly(length)
        if method == "POST":
            return await self._exchange(key, body, holder)
        if self._shared is not None:
            return "405 Method Not Allowed", b""
        if method == "PUT":
            return await self._put(key, body)
        if method == "GET":
            return await self._get(key)
        return "200 OK", b""

    async def _exchange(self, path: str, parts: bytes, holder: str) -> tuple[str, bytes]:
        """Add a member's parts to the exchange of its group, and wait for those of the others.

        Args:
            path: `scope/rank/size`.
            parts: See `Exchange`.
            holder: The holder of the certificate with which the request came.

        Raises:
            WireError: The rank is not that of the holder.
        """
        scope, member, members = path.rsplit("/", 2)
        rank, size = int(member), int(members)
        if not 0 <= rank < size or size < 2 or not parts or len(parts) % (size - 1):
            return "400 Bad Request", b""
        if self._shared is not None and not self._is_member(rank, size, holder):
            raise WireError(f"{holder} asks for rank {rank} of {size}, which is not its own")
        exchange = self._exchanges.get(scope)
        if exchange is None:
            num_bytes = self._num_bytes + size * len(parts)
            if num_bytes > MAX_TOTAL_BYTES or len(self._exchanges) >= MAX_KEYS:
                return "507 Insufficient Storage", b""
            exchange, self._num_bytes = Exchange(size, len(parts)), num_bytes
            self._exchanges[scope] = exchange
        if (size, len(parts)) != (exchange.size, exchange.num_bytes):
            return "400 Bad Request", b""
        if not exchange.put(rank, parts):
            return "409 Conflict", b""
        if self._is_abandoned:
            return "410 Gone", b""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await exchange.is_over.wait()
        except TimeoutError:
            return "408 Request Timeout", b""
        if self._is_abandoned:
            return "410 Gone", b""
        return "200 OK", exchange.take(rank)

    def _is_member(self, rank: int, size: int, holder: str) -> bool:
        # Each party has one worker, so all groups of several members have those of the ring.
        return size == len(self._parties) and holder == tls.holder_of_party(self._parties[rank])

    async def _put(self, key: str, value: bytes) -> tuple[str, bytes]:
        async with self._arrived:
            num_bytes = self._num_bytes - len(self._values.get(key, b"")) + len(value)
            is_new = key not in self._values
            if num_bytes > MAX_TOTAL_BYTES or (is_new and len(self._values) >= MAX_KEYS):
                return "507 Insufficient Storage", b""
            self._values[key], self._num_bytes = value, num_bytes
            self._arrived.notify_all()
        return "200 OK", b""

    async def _get(self, key: str) -> tuple[str, bytes]:
        async with self._arrived:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._arrived.wait_for(lambda: self._is_abandoned or key in self._values)
            except TimeoutError:
                return "404 Not Found", b""
            if self._is_abandoned:
                return "200 OK", b""
            return "200 OK", self._values[key]


class Exchange:
    """An all-to-all exchange in a group: each member has a part for each other member."""

    def __init__(self, size: int, num_bytes: int) -> None:
        """Begin an exchange.

        Args:
            size: Number of members of the group.
            num_bytes: Size of the parts of one member together: size - 1 parts of equal length, in
                the order of the other members' ranks.
        """
        self.size = size
        self.num_bytes = num_bytes
        self.is_over = asyncio.Event()
        """Set when all members have sent their parts, or when the ring is abandoned."""
        self._parts: dict[int, bytes] = {}

    def put(self, rank: int, parts: bytes) -> bool:
        """Store the parts of a member.

        Args:
            rank: The member; it may send its parts again.
            parts: Its parts, `num_bytes` bytes.

        Returns:
            Whether they are its first ones, or the same.
        """
        is_same = self._parts.setdefault(rank, parts) == parts
        if len(self._parts) == self.size:
            self.is_over.set()
        return is_same

    def take(self, rank: int) -> bytes:
        """Return the parts for a member, in the order of the senders; the exchange is complete."""
        width = self.num_bytes // (self.size - 1)
        parts = []
        for other in range(self.size):
            if other != rank:
                # The sender has no part for itself, so those for higher ranks move up by one.
                start = width * (rank if rank < other else rank - 1)
                parts.append(self._parts[other][start : start + width])
        return b"".join(parts)


class Wakeup:
    """Wakes the coordinator's loop when something changes or the job is over."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.is_over = False

    def wake(self) -> None:
        """Report a change."""
        self._changed.set()

    def clear(self) -> None:
        """Forget the changes so far; the caller is about to look at all of them."""
        self._changed.clear()

    async def sleep(self, seconds: float | None) -> None:
        """Wait for a change after `clear`, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


class Forming:
    """The stages of forming a ring; each of them returns at once when the job is over."""

    def __init__(self, server: WorkerServer, wakeup: Wakeup, settings: CoordinatorSettings) -> None:
        self._server = server
        self._wakeup = wakeup
        self._address, self._timings = settings.address, settings.timings
        self._forming_seconds = settings.elastic.forming_seconds

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
        """Ping all workers, and mark those as silent that do not answer soon.

        Returns:
            The time of the pings; `Worker.heard_at` is later for workers that answered.
        """
        asked_at = time.monotonic()
        asked = [w for w in self._server.workers.values() if w.is_answering]
        ring = frozenset(members)
        for worker in self._server.workers.values():
            worker.ping()
        while not self._wakeup.is_over:
            missing = [w for w in asked if w.is_connected and w.heard_at < asked_at]
            holders = [w for w in asked if w.is_connected and w in ring and w.has_state]
            # Newcomers would begin at step 0 if no holder of the state answered, so while all of
            # them are missing they get more time.
            patience = self._timings.sign_of_life_seconds
            if holders and all(w.heard_at < asked_at for w in holders):
                patience = self._timings.silence_seconds
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
        """Send the members their places, and wait until all of them report the ring as formed.

        Returns:
            Whether all did; false as soon as one cannot.
        """
        seconds, hello_seconds = self._forming_seconds, self._timings.hello_seconds
        shared = self._server if self._server.tls is not None else None
        parties = tuple(worker.candidate.host for worker in members) if shared else ()
        async with Rendezvous(
            self._address,
            wait_seconds=seconds,
            hello_seconds=hello_seconds,
            shared=shared,
            parties=parties,
        ) as rendezvous:
            places = assign_ranks(
                [worker.candidate for worker in members],
                generation=generation,
                step=max(member.step for member in members),
                rendezvous_address=self._address,
                rendezvous_port=rendezvous.port,
                rendezvous_token=rendezvous.token,
            )
            for worker, place in zip(members, places, strict=True):
                worker.is_ready = worker.is_short = False
                worker.placed = generation
                worker.send(replace(place, parties=parties))
            return await self._watch_over(members, generation)

    async def _watch_over(self, members: Sequence[Worker], generation: int) -> bool:
        """Ping the members until all report the ring as formed (true), or one cannot (false)."""
        deadline = time.monotonic() + self._forming_seconds
        missed = {worker.name: 0 for worker in members}
        while not self._wakeup.is_over and time.monotonic() < deadline:
            asked_at = time.monotonic()
            for worker in members:
                # Not `Worker.ping`, which counts pings for `Liveness`, at a longer interval.
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
                is_heard = worker.heard_at >= asked_at
                missed[worker.name] = 0 if is_heard else missed[worker.name] + 1
            silent = [w for w in members if missed[w.name] >= MAX_MISSED_PINGS]
            for worker in silent:
                worker.is_silent = True
                log.warning("worker %s gives no sign of life while the ring forms", worker.label)
            if silent:
                return False
        return False
