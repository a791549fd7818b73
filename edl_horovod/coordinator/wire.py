"""Connections between coordinator and workers: one authenticated JSON object a line.

The coordinator greets a connection with a nonce; the client answers with its own. From then on each
line is `<hex HMAC-SHA256> <json>`. The code is keyed with the job's secret and covers both nonces,
the direction and the line's number. So a line can be neither forged, nor replayed, nor reflected to
its sender. Nothing is ever unpickled. Unauthenticated connections are limited in number, and hosts
that vanish are noticed.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import math
import re
import resource
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from edl_horovod.files import json_text

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 16
BACKLOG = 1024
MAX_NUMBER = 1 << 63
VANISHED_SECONDS = 2.0
"""Silence of the other host's kernel after which a connection is broken, within one probe."""
PROBE_SECONDS = 1
OPEN_FILES = 8192
"""Room for a few thousand workers and all unauthenticated connections; many shells allow 1024."""
CLOSE_SECONDS = 5.0
"""How long the other end may take to receive the last bytes of a connection that ends."""
COMPLAINT_SECONDS = 10.0
"""Least time between two log lines about refused connections."""
Message = dict[str, Any]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Handles a connection to its end."""
Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]
"""Begins to handle a connection, or handles it to its end."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a number that a message may contain")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) >= MAX_NUMBER:
        raise ValueError(f"{text[:20]} is larger than any number that a message may contain")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_int=_whole, parse_constant=_finite)


class WireError(Exception):
    """A line is not from a member of this job, or is damaged. The connection must be closed."""


def new_nonce() -> str:
    """Draw a number that is used once, as 32 hex digits."""
    return secrets.token_hex(16)


def greeting(nonce: str, party: str = "") -> bytes:
    """The first line of either end; a party of a federated training says whose secret it has."""
    return f"edl {nonce}{party and f' {party}'}\n".encode()


def greeting_of(line: bytes) -> tuple[str, str]:
    """The nonce in the other end's first line, and the name of a party; else empty.

    Raises:
        WireError: It is not a greeting. The format is checked strictly: the nonce becomes a part of
            the text that codes cover, and must not be able to imitate other parts.
    """
    match = re.fullmatch(rb"edl ([0-9a-f]{32})(?: ([A-Za-z0-9_-]{1,40}))?\n", line)
    if match is None:
        raise WireError("the first line is not a greeting")
    return match[1].decode(), (match[2] or b"").decode()


def secret_of_party(secret: bytes, party: str) -> bytes:
    """The secret that a party of a federated training shares with the coordinator alone."""
    return hmac.new(secret, f"party {party}".encode(), hashlib.sha256).digest()


class Channel:
    """Authenticates the lines of one connection, at one of its ends."""

    def __init__(
        self, secret: bytes, *, server_nonce: str, client_nonce: str, is_server: bool
    ) -> None:
        self._secret = secret
        self._nonces = f"{server_nonce}:{client_nonce}"
        self._sent_mark, self._received_mark = ("s", "c") if is_server else ("c", "s")
        self._num_sent = 0
        self._num_received = 0

    def seal(self, message: Message) -> bytes:
        """Encode a message as a line for the other end.

        Raises:
            WireError: The message is too long.
        """
        body = json_text.dumps(message, separators=(",", ":"))
        line = f"{self._code(self._sent_mark, self._num_sent, body)} {body}\n".encode()
        if len(line) > MAX_LINE_BYTES:
            raise WireError(
                f"a message of {len(line)} bytes is above the limit of {MAX_LINE_BYTES}"
            )
        self._num_sent += 1
        return line

    def open(self, line: bytes) -> Message:
        """Decode a line of the other end.

        Raises:
            WireError: The line is not the next one of the other end, or is not a message.
        """
        if len(line) > MAX_LINE_BYTES:
            raise WireError(f"a line of {len(line)} bytes is above the limit of {MAX_LINE_BYTES}")
        try:
            code, _, body = line.decode().rstrip("\n").partition(" ")
        except UnicodeDecodeError as error:
            raise WireError("a line is not text") from error
        expected = self._code(self._received_mark, self._num_received, body)
        if not hmac.compare_digest(code.encode(), expected.encode()):
            raise WireError("a line's authentication code is wrong")
        self._num_received += 1
        try:
            message = _DECODER.decode(body)
        except (ValueError, RecursionError) as error:
            raise WireError("a line is not JSON") from error
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise WireError("a line is not a message")
        return message

    def _code(self, direction: str, number: int, body: str) -> str:
        text = f"{self._nonces}:{direction}:{number}:{body}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


def at_most(limit: int) -> int:
    """Lower a limit of connections to an eighth of the files that this process may open.

    The rest is for members, and for connections beyond the limit: `asyncio` accepts a whole backlog
    before it calls a handler, and closes aborted connections only some iterations later.
    """
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if open_files == resource.RLIM_INFINITY else min(limit, open_files // 8)


def allow_open_files() -> None:
    """Let this process open OPEN_FILES files, or as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, without what was not sent yet."""
    # Python 3.11.2 raises it for one of TLS that was closed twice; later Pythons pass over it.
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


class UnauthenticatedConnections:
    """The connections of one server that have not authenticated themselves yet."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._addresses: dict[asyncio.StreamWriter, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, writer: asyncio.StreamWriter) -> asyncio.StreamWriter | None:
        """Add a new connection. If there are too many, abort one.

        That is the oldest connection of the address with the most of them. A member authenticates
        itself within a round trip, and an address that opens thousands displaces only its own.

        Returns:
            The connection that was aborted, or None.
        """
        peer = writer.get_extra_info("peername")
        self._addresses[writer] = str(peer[0]) if peer else ""
        if len(self) <= self._limit:
            return None
        ((busiest, _),) = Counter(self._addresses.values()).most_common(1)
        oldest = next(w for w, address in self._addresses.items() if address == busiest)
        self.leave(oldest)
        abort(oldest)
        return oldest

    def leave(self, writer: asyncio.StreamWriter) -> None:
        """Remove a connection that has authenticated itself or is gone."""
        self._addresses.pop(writer, None)


class Refusals:
    """Logs why connections are refused: rarely, as anyone can open thousands."""

    def __init__(self) -> None:
        self._num_refused = 0
        self._logged_at = -math.inf

    def add(self, reason: object) -> None:
        """Count a refused connection, and log it unless another one was logged lately."""
        self._num_refused += 1
        now = time.monotonic()
        if now - self._logged_at >= COMPLAINT_SECONDS:
            self._logged_at = now
            log.warning("connection refused, %d until now: %s", self._num_refused, reason)


async def start_server(accept: Accept, host: str, port: int = 0, **limits: int) -> asyncio.Server:
    """Listen, as `asyncio.start_server`; that leaves its port open if it is cancelled.

    Raises:
        OSError: The port is taken.
    """
    server = await asyncio.start_server(accept, host, port, start_serving=False, **limits)
    try:
        await server.start_serving()
    except BaseException:
        server.close()
        raise
    return server


class Listener:
    """A listening port; a connection is closed when its handler ends, in whichever way."""

    def __init__(
        self,
        serve: Serve,
        *,
        max_line_bytes: int,
        max_unauthenticated: int,
    ) -> None:
        """Prepare; `start` opens the port.

        Args:
            serve: Handles a connection, and removes it from `unauthenticated`.
            max_line_bytes: Length of the longest line that a connection may send.
            max_unauthenticated: Most connections that have not authenticated themselves.
        """
        self._serve = serve
        self._max_line_bytes = max_line_bytes
        self.unauthenticated = UnauthenticatedConnections(at_most(max_unauthenticated))
        self._tasks: dict[asyncio.StreamWriter, asyncio.Future[None]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int = 0) -> int:
        """Listen; returns the port.

        Raises:
            OSError: The port is taken.
        """
        limits = {"limit": self._max_line_bytes, "backlog": at_most(BACKLOG)}
        self._server = await start_server(self._accept, host, port, **limits)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening; open connections stay open."""
        if self._server is not None:
            self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def end(_: asyncio.Future[None]) -> None:
            del self._tasks[writer]
            self.unauthenticated.leave(writer)
            writer.close()
            # TLS waits for the other end to agree, and longer.
            loop.call_later(CLOSE_SECONDS, abort, writer)

        loop = asyncio.get_running_loop()
        # Not left to `start_server`: it raises in a callback if a handler is cancelled, and leaves
        # the connection open if that happens before the handler has begun.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks[writer] = task
        task.add_done_callback(end)
        if (aborted := self.unauthenticated.enter(writer)) is not None:
            # Otherwise `asyncio` takes a handshake of TLS that was aborted for one that succeeded.
            self._tasks[aborted].cancel()


def notice_vanished_host(connection: socket.socket, seconds: float = VANISHED_SECONDS) -> None:
    """Make the kernel break a connection so many seconds after the other host has vanished.

    The other host's kernel answers even for a process that is busy, stopped or swapped out. So this
    finds hosts that are gone, for instance behind a cut link, and not slow ranks, unless these
    leave so much unread for so long that the other end can send nothing.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    # Applies to probes, to unacknowledged data, during which no probes are sent, and to data that
    # the other end does not read.
    milliseconds = round(seconds * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
