"""Carries all traffic of a party of a federated training over mutual TLS.

Neither Gloo nor Horovod's client of the rendezvous can encrypt. So both stay on loopback, where a
proxy in a thread of the worker takes over:

- Horovod asks the proxy's rendezvous for the addresses on which the others listen. The proxy asks
  the coordinator's, where it puts an `Offer` in place of each address on which Gloo listens: the
  proxy's own address, and a key that is drawn for this one connection.
- Of two members the one with the higher rank connects to the other's proxy and shows that key. Each
  requires that the other has the certificate of the party that, as the coordinator says, has this
  rank. Then both proxies connect to Gloo of their own worker, and copy what comes from either side.
- Gloo never connects by itself: of two members the one with the lower address waits for the other,
  and for each peer it gets the highest of all addresses.

The format of Gloo's addresses is that of gloo/transport/tcp/address.h: a `sockaddr_storage` and a
sequence number.
"""

import asyncio
import contextlib
import errno
import hmac
import json
import logging
import os
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine
from concurrent import futures
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from edl_horovod.coordinator import tls, wire
from edl_horovod.coordinator.messages import Place
from edl_horovod.coordinator.tls import Identity
from edl_horovod.coordinator.wire import Listener, Refusals, WireError
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.base import CollectiveFailed

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 5.0
FLUSH_SECONDS = 2.0
"""How long the other end may take to receive the last bytes of a connection that ends."""
ANSWER_SECONDS = 10.0
"""How long the coordinator's rendezvous may take in addition to its own time-out."""
BUFFER_BYTES = 1 << 20
OFFER_BYTES = 512
"""Room for a host name, a port and a key; the rendezvous wants equal lengths."""
KEY_BYTES = 16
MAX_UNAUTHENTICATED = 256

_LENGTH = "content-length:"
_Result = TypeVar("_Result")


class Stream(NamedTuple):
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Where and how another party can connect to this one, for one connection of Gloo."""

    host: str
    port: int
    key: str
    """Shown by the party that connects, in hexadecimal digits."""

    def encode(self) -> bytes:
        """Encode it with a fixed length."""
        return json.dumps(asdict(self)).encode().ljust(OFFER_BYTES)

    @classmethod
    def decode(cls, data: bytes) -> "Offer":
        """Decode an offer.

        Raises:
            ValueError: It is not an offer.
        """
        values = json.loads(data)
        try:
            host, port, key = values["host"], int(values["port"]), values["key"]
        except (TypeError, KeyError) as error:
            raise ValueError("this is not an offer of a party") from error
        if not 0 < port < 1 << 16:
            raise ValueError(f"an offer of a party has the port {port}")
        return cls(host=str(host), port=port, key=str(key))


@dataclass(eq=False)
class _Expected:
    """A connection that another party is going to open."""

    party: str
    stream: "asyncio.Future[Stream]"
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """What a party's links need to know."""

    party: str
    identity: Identity
    token_file: Path
    """For messages to people."""
    host: str
    """The coordinator."""
    port: int
    address: str
    """HOST:PORT at which the other parties reach this one; empty for the address from which this
    party reaches the coordinator, and any port."""
    forming_seconds: float
    """How long the others may take while a ring forms."""


class PartyLinks:
    """The connections of one worker, over all of its rings.

    A link ends when either end of it closes its connection, so those of a ring end with the ring.
    """

    def __init__(self, settings: PartySettings) -> None:
        """Prepare; the first call of `connect` starts the thread.

        Raises:
            ValueError: The identity is damaged.
        """
        self._settings = settings
        identity = settings.identity
        self._end = tls.end_of(identity.certificate)
        self._clients = {
            name: tls.context(identity, name) for name in (tls.MESSAGES, tls.RENDEZVOUS, tls.LINK)
        }
        self._server = tls.context(identity, tls.LINK, is_server=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._has_met_coordinator = False
        self._local_host = ""
        """The address of this machine from which it reaches the coordinator."""
        self._own_host, self._own_port = "", 0
        """Where other parties reach this one."""
        self._listener = Listener(
            self._serve_link, max_line_bytes=BUFFER_BYTES, max_unauthenticated=MAX_UNAUTHENTICATED
        )
        self._refusals = Refusals()
        self._rendezvous: asyncio.Server | None = None
        self._place: Place | None = None
        """The place in the newest ring."""
        self._expected: dict[str, _Expected] = {}
        self._pending: set[asyncio.Task[None]] = set()
        """Links of the newest ring that are not connected yet."""
        self._links: set[asyncio.Task[None]] = set()
        self._unreached: dict[str, str] = {}
        """Why parties of the newest ring cannot be reached."""

    def connect(self, seconds: float) -> socket.socket:
        """Connect to the coordinator, for messages.

        Returns:
            A socket whose other end is the proxy.

        Raises:
            ConfigError: The coordinator is not that of the party's token, or the certificate of the
                party has expired.
            OSError: The coordinator cannot be reached.
            WireError: It is not the coordinator that answers.
        """
        self._require_valid()
        coordinator = f"{self._settings.host}:{self._settings.port}"
        try:
            connection = self._result_of(self._connect(), seconds)
        except ssl.SSLError as error:
            reason = tls.refusal(error, f"the coordinator {coordinator}")
            if self._has_met_coordinator or not reason:
                raise
            raise self._refused(reason, "Give the token that its operator made.") from error
        self._has_met_coordinator = True
        return connection

    def place(self, place: Place) -> Place:
        """Begin to form a ring; returns the place with the rendezvous of the proxy.

        Raises:
            ConfigError: The certificate of this party has expired.
            OSError: The address of this party cannot be used.
        """
        self._require_valid()
        port = self._result_of(self._begin(place), CONNECT_SECONDS)
        return replace(place, rendezvous_address=LOOPBACK, rendezvous_port=port)

    def explained(self, failure: CollectiveFailed) -> CollectiveFailed:
        """Add to the failure of a ring the parties that could not be reached, and why."""
        unreached = self._unreached.copy()  # In one step, as the other thread may add to it.
        if not unreached:
            return failure
        reasons = "; ".join(f"party {name!r}: {why}" for name, why in unreached.items())
        return CollectiveFailed(f"{failure} ({reasons})", unreached=tuple(unreached))

    def close(self) -> None:
        """Send what was left to send, end all links, and end the thread."""
        if self._loop is None or self._thread is None:
            return
        with contextlib.suppress(TimeoutError):
            self._result_of(self._finish(), 2 * FLUSH_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _require_valid(self) -> None:
        if datetime.now(UTC) >= self._end:
            reason = f"its certificate expired on {self._end:%Y-%m-%d at %H:%M} UTC"
            raise self._refused(reason, "Ask the operator of the coordinator for a new token.")

    def _refused(self, reason: str, hint: str) -> ConfigError:
        # Not a `PartyError`, whose text others see: it has the name of a file.
        settings = self._settings
        return ConfigError(
            f"Party {settings.party!r} cannot take part: {reason}.",
            received={
                "--join": f"{settings.host}:{settings.port}",
                "--party-token": settings.token_file,
            },
            hint=hint,
        )

    def _result_of(self, coroutine: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
        """Run a coroutine in the proxy's thread."""
        if self._loop is None:
            wire.allow_open_files()  # Each connection of Gloo takes two more here.
            self._loop = asyncio.new_event_loop()
            run = self._loop.run_forever
            self._thread = threading.Thread(target=run, name="links", daemon=True)
            self._thread.start()
        if self._loop.is_closed():
            coroutine.close()
            raise ConnectionAbortedError("the links of this party are closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise
        except futures.CancelledError as error:
            raise ConnectionAbortedError("the links of this party are closing") from error

    # -- in the proxy's thread

    async def _connect(self) -> socket.socket:
        settings = self._settings
        far = await self._open(settings.host, settings.port, tls.MESSAGES, tls.COORDINATOR)
        try:
            first = await far.reader.readline()
            if not first:  # The log of the coordinator says why it refuses this party.
                raise ConnectionResetError("the coordinator hung up")
            for_caller, for_proxy = socket.socketpair()
            near = Stream(*await asyncio.open_unix_connection(sock=for_proxy))
        except BaseException:
            wire.abort(far.writer)
            raise
        near.writer.write(first)
        self._local_host = far.writer.get_extra_info("sockname")[0]
        self._start_link(_splice(near, far))
        return for_caller

    async def _begin(self, place: Place) -> int:
        for task in self._pending:
            task.cancel()
        self._expected.clear()
        self._unreached.clear()
        self._place = place
        host, _, port = self._settings.address.rpartition(":")
        own_host = host or self._local_host
        if own_host != self._own_host:
            # For the first ring, or because the machine has got another address since.
            self._listener.close()
            # A given address may be that of another machine, which forwards to this one.
            bound = "" if host else own_host
            self._own_port = await self._listener.start(bound, int(port or 0))
            self._own_host = own_host
        if self._rendezvous is None:
            self._rendezvous = await wire.start_server(self._serve_rendezvous, LOOPBACK)
        port_of_rendezvous: int = self._rendezvous.sockets[0].getsockname()[1]
        return port_of_rendezvous

    async def _finish(self) -> None:
        self._listener.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        for task in self._pending:
            task.cancel()
        if self._links:
            await asyncio.wait(self._links, timeout=FLUSH_SECONDS)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for other in rest:
            other.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0)  # Connections that were aborted close in the loop's next turn.

    def _start_link(self, link: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(link)
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        return task

    async def _open(self, host: str, port: int, protocol: str, holder: str) -> Stream:
        """Connect to the holder of a certificate.

        Raises:
            WireError: Another holder answers.
            OSError: The holder does not answer, or this end refuses its certificate.
        """
        async with asyncio.timeout(CONNECT_SECONDS):
            stream = Stream(
                *await asyncio.open_connection(
                    host, port, ssl=self._clients[protocol], limit=BUFFER_BYTES
                )
            )
        if (shown := tls.holder(stream.writer)) != holder:
            wire.abort(stream.writer)
            raise WireError(f"{host}:{port} has the certificate of {shown}, not of {holder}")
        self._notice_vanished(stream.writer)
        return stream

    def _notice_vanished(self, writer: asyncio.StreamWriter) -> None:
        # As long as Gloo waits itself. This process may do something else for a moment.
        connection = writer.get_extra_info("socket")
        wire.notice_vanished_host(connection, self._settings.forming_seconds)

    async def _serve_rendezvous(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request of Horovod's client."""
        bad_requests = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
        with contextlib.closing(writer), contextlib.suppress(OSError, *bad_requests):
            first, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            method, path, _ = first.split()
            lengths = [h.partition(":")[2] for h in headers if h.lower().startswith(_LENGTH)]
            addresses = await reader.readexactly(int(lengths[0]) if lengths else 0)
            try:
                status, answer = await self._exchange(method, path, addresses)
            except (OSError, WireError, ValueError) as error:
                log.warning("the rendezvous of the coordinator cannot be used: %s", error)
                status, answer = "503 Service Unavailable", b""
            head = f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\n\r\n"
            writer.write(head.encode() + answer)
            await writer.drain()

    async def _exchange(self, method: str, path: str, addresses: bytes) -> tuple[str, bytes]:
        """Exchange offers in place of Gloo's addresses, and begin to connect the members.

        Args:
            method: POST of our own Horovod, or one of a released Horovod, which cannot be served.
            path: `/token/scope/rank/size`.
            addresses: Those on which Gloo listens for each other member.
        """
        token = path.split("/")[1].partition(":")[0]
        place = self._place
        if method != "POST" or place is None:
            return "400 Bad Request", b""
        if not hmac.compare_digest(token.encode(), place.rendezvous_token.encode()):
            return "400 Bad Request", b""
        rank, size = map(int, path.rsplit("/", 2)[1:])
        if not 2 <= size == len(place.parties) or len(addresses) % (size - 1):
            return "400 Bad Request", b""
        others = [other for other in range(size) if other != rank]
        width = len(addresses) // len(others)
        offers = [self._new_offer() for _ in others]
        expected = {
            offer.key: _Expected(place.parties[other], asyncio.get_running_loop().create_future())
            for other, offer in zip(others, offers, strict=True)
            if other > rank
        }
        self._expected.update(expected)
        status, answer = await self._ask(path, b"".join(offer.encode() for offer in offers))
        if status != "200 OK":
            return status, b""
        peers = [
            Offer.decode(answer[start : start + OFFER_BYTES])
            for start in range(0, len(answer), OFFER_BYTES)
        ]
        answers = []
        for number, (other, offer, peer) in enumerate(zip(others, offers, peers, strict=True)):
            address = addresses[number * width : (number + 1) * width]
            party = place.parties[other]
            link = self._link(GlooAddress(address), party, peer, expected.get(offer.key))
            task = self._start_link(link)
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            answers.append(GlooAddress(address).highest())
        return status, b"".join(answers)

    def _new_offer(self) -> Offer:
        return Offer(
            host=self._own_host,
            port=self._own_port,
            key=secrets.token_hex(KEY_BYTES),
        )

    async def _ask(self, path: str, body: bytes) -> tuple[str, bytes]:
        """Send a request to the coordinator's rendezvous; returns the status and the body."""
        settings = self._settings
        async with asyncio.timeout(settings.forming_seconds + ANSWER_SECONDS):
            far = await self._open(settings.host, settings.port, tls.RENDEZVOUS, tls.COORDINATOR)
            try:
                head = f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
                far.writer.write(head.encode() + body)
                await far.writer.drain()
                head_of_answer, _, answer = (await far.reader.read()).partition(b"\r\n\r\n")
            finally:
                wire.abort(far.writer)
        if not head_of_answer:
            return "410 Gone", b""  # A newer ring forms.
        return head_of_answer.decode().splitlines()[0].partition(" ")[2], answer

    async def _link(
        self, gloo: "GlooAddress", party: str, peer: Offer, expected: _Expected | None
    ) -> None:
        """Connect Gloo of this worker with that of another party, until one of them ends."""
        try:
            far = await self._reach(party, peer, expected)
            if far is None:
                # Gloo notices at once by a connection that closes, and later by a time-out.
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(*gloo.endpoint)
                    writer.close()
                return
            try:
                near = Stream(*await asyncio.open_connection(*gloo.endpoint, limit=BUFFER_BYTES))
                if (task := asyncio.current_task()) is not None:
                    self._pending.discard(task)
                await _splice(near, far)
            except ConnectionRefusedError:
                pass  # This worker has given the ring up.
            finally:
                wire.abort(far.writer)
        finally:
            if expected is not None:
                expected.is_over.set()

    async def _reach(self, party: str, peer: Offer, expected: _Expected | None) -> Stream | None:
        """Connect to another party, or wait until it connects; None if that fails."""
        try:
            async with asyncio.timeout(self._settings.forming_seconds):
                if expected is not None:
                    return await expected.stream
                holder, key = tls.holder_of_party(party), bytes.fromhex(peer.key)
                far = await self._open(peer.host, peer.port, tls.LINK, holder)
                far.writer.write(key)
                return far
        except (OSError, WireError, ValueError) as error:
            reason = str(error) or "it does not answer"
            if isinstance(error, ssl.SSLError):
                reason = tls.refusal(error, f"party {party!r}") or reason
            elif (number := getattr(error, "errno", 0) or 0) in errno.errorcode:
                reason = os.strerror(number)
            if expected is None:
                self._unreached[party] = f"{peer.host}:{peer.port}: {reason}"
            log.warning("no connection with party %r: %s", party, reason)
            return None

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand a connection of another party to the link that expects it."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await tls.accept(writer, self._server)
                key = (await reader.readexactly(KEY_BYTES)).hex()
        except WireError as error:
            self._refusals.add(error)
            return
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("connection ended: %r", error)
            return
        expected, caller = self._expected.get(key), tls.holder(writer)
        if expected is not None and caller != tls.holder_of_party(expected.party):
            self._refusals.add(f"{caller} has the key of party {expected.party!r}")
        elif expected is not None and not expected.stream.done():
            del self._expected[key]
            self._listener.unauthenticated.leave(writer)
            self._notice_vanished(writer)
            expected.stream.set_result(Stream(reader, writer))
            await expected.is_over.wait()  # The connection ends with this call.


class GlooAddress:
    """An address as Gloo exchanges it, of which only the host and the port are looked at."""

    def __init__(self, data: bytes) -> None:
        """Read an address.

        Raises:
            ValueError: It is not one of IPv4 or IPv6.
        """
        self._data = data
        (self._family,) = struct.unpack_from("=H", data)
        if self._family not in _HOST_BYTES:
            raise ValueError(f"an address of Gloo has the unknown family {self._family}")

    @property
    def endpoint(self) -> tuple[str, int]:
        """The host and the port."""
        host = socket.inet_ntop(self._family, self._data[_HOST_BYTES[self._family]])
        return host, int.from_bytes(self._data[2:4])

    def highest(self) -> bytes:
        """The address with the highest host of its family in place of its own."""
        place = _HOST_BYTES[self._family]
        host = b"\xff" * (place.stop - place.start)
        return self._data[: place.start] + host + self._data[place.stop :]


_HOST_BYTES = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
"""Where a `sockaddr` has its host, by family."""


async def _splice(near: Stream, far: Stream) -> None:
    """Copy between two connections in both directions, until one of them ends."""
    copies = [
        asyncio.create_task(_copy(near.reader, far.writer)),
        asyncio.create_task(_copy(far.reader, near.writer)),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        await asyncio.gather(_close(near.writer), _close(far.writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(BUFFER_BYTES):
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Send what was written, and close the connection.

    The end of TLS would wait for the other side, and longer than a worker may take to end.
    """
    writer.close()
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await writer.wait_closed()
    except OSError:
        pass
    finally:
        wire.abort(writer)
