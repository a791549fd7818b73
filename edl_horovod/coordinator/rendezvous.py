"""The key-value server through which a generation's Gloo members find each other.

Our Horovod (docs/adr/0003) sends one request for each group that it is in, `POST /scope/rank/size`:
the addresses that it listens on for the others. The answer, once all have come, is where the others
listen for it.

A released Horovod (`horovod/common/gloo/http_store.cc`) sends PUT, GET and DELETE of `/scope/key`,
several for each other member, and takes a 404 for a key that is not there yet. Its own server
answers the 404 at once and every member asks again every 10 ms; here a GET waits for its key.

A ring that cannot be completed is abandoned: everyone is then answered at once with nothing, at
which Gloo raises instead of waiting for its time-out.

Horovod's client proves nothing, but it takes an address with a path. So each generation's paths
begin with a token, which the members are told over their authenticated connections.
"""

import asyncio
import hmac
import secrets

from edl_horovod.coordinator.connections import UnauthenticatedConnections, at_most
from edl_horovod.coordinator.settings import Timings

__all__ = ["Exchange", "Rendezvous"]

BACKLOG = 1024
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


class Rendezvous:
    """One generation's server; use it in an `async with`."""

    def __init__(
        self,
        host: str,
        *,
        wait_seconds: float,
        hello_seconds: float = Timings.hello_seconds,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        """Say where to listen.

        Args:
            host: Address to bind.
            wait_seconds: How long a GET waits for its key before a 404.
            hello_seconds: How long a connection may take to prove that it is a member's.
            linger_seconds: Longest that a member of a ring that was given up may need to ask for
                the last time.
        """
        self._host = host
        self._wait_seconds = wait_seconds
        self._hello_seconds = hello_seconds
        self._linger_seconds = linger_seconds
        self.token = secrets.token_hex(16)
        """First part of all paths, up to a colon if there is one."""
        self._unauthenticated = UnauthenticatedConnections(at_most(MAX_UNAUTHENTICATED))
        self._values: dict[str, bytes] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._num_bytes = 0
        self._arrived = asyncio.Condition()
        self._is_abandoned = False
        self._server: asyncio.Server | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that was bound."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> "Rendezvous":
        self._server = await asyncio.start_server(
            self._serve, self._host, 0, limit=MAX_LINE_BYTES, backlog=at_most(BACKLOG)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.abandon()
        # Not at once: Horovod's client asks a port that is closed three times in 1.5 s.
        self._closing = asyncio.create_task(self._close_later())

    async def abandon(self) -> None:
        """Make every member that still waits fail at once."""
        async with self._arrived:
            self._is_abandoned = True
            self._arrived.notify_all()
        for exchange in self._exchanges.values():
            exchange.is_over.set()

    async def _close_later(self) -> None:
        assert self._server is not None
        try:
            await asyncio.sleep(self._linger_seconds)
        finally:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._unauthenticated.enter(writer)
        try:
            async with asyncio.timeout(self._hello_seconds):
                method, key = await self._first_line(reader)
            self._unauthenticated.leave(writer)
            async with asyncio.timeout(self._wait_seconds + 5):
                status, body = await self._answer(reader, method, key)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except asyncio.CancelledError:
            pass  # As in `WorkerServer`: a handler that ends as cancelled raises in a callback.
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            pass  # A member that dies in the middle of a request; the membership loop hears of it.
        finally:
            self._unauthenticated.leave(writer)
            writer.close()

    async def _first_line(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        """Method and key of a request.

        Raises:
            ValueError: It is none, or not a member's: nothing of it is read or answered.
        """
        method, path, _ = (await reader.readline()).decode().split()
        _, token, key = path.split("/", 2)
        if not hmac.compare_digest(token.partition(":")[0].encode(), self.token.encode()):
            raise ValueError("not a path of this generation")
        return method, key

    async def _answer(
        self, reader: asyncio.StreamReader, method: str, key: str
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
            return await self._exchange(key, body)
        if method == "PUT":
            return await self._put(key, body)
        if method == "GET":
            return await self._get(key)
        return "200 OK", b""

    async def _exchange(self, path: str, parts: bytes) -> tuple[str, bytes]:
        scope, member, members = path.rsplit("/", 2)
        rank, size = int(member), int(members)
        if not 0 <= rank < size or size < 2 or not parts or len(parts) % (size - 1):
            return "400 Bad Request", b""
        exchange = self._exchanges.get(scope)
        if exchange is None:
            num_bytes = self._num_bytes + size * len(parts)
            if num_bytes > MAX_TOTAL_BYTES or len(self._exchanges) >= MAX_KEYS:
                return "507 Insufficient Storage", b""
            exchange, self._num_bytes = Exchange(size, len(parts)), num_bytes
            self._exchanges[scope] = exchange
        if (size, len(parts)) != (exchange.size, exchange.num_bytes):
            return "400 Bad Request", b""
        exchange.give(rank, parts)
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
    """Collects what each member has for each other member."""

    def __init__(self, size: int, num_bytes: int) -> None:
        """Begin with nothing.

        Args:
            size: Members of the group.
            num_bytes: What a member has for all others: parts of one length, in the order of the
                others' ranks.
        """
        self.size = size
        self.num_bytes = num_bytes
        self.is_over = asyncio.Event()
        """All members have given their parts, or no member is waiting any longer."""
        self._given: dict[int, bytes] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all members have given their parts."""
        return len(self._given) == self.size

    def give(self, rank: int, parts: bytes) -> None:
        """Take what a member has for the others.

        Args:
            rank: The member; it may give its parts twice.
            parts: As many bytes as of every member.
        """
        self._given[rank] = parts
        if self.is_complete:
            self.is_over.set()

    def take(self, rank: int) -> bytes:
        """What the others have for a member, in rank order, once the exchange is complete."""
        width = self.num_bytes // (self.size - 1)
        parts = []
        for other in range(self.size):
            if other != rank:
                # A member has no part for itself.
                start = width * (rank if rank < other else rank - 1)
                parts.append(self._given[other][start : start + width])
        return b"".join(parts)
