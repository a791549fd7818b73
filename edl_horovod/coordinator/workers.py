"""The state of each worker as the coordinator knows it, and the server that workers call."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from edl_horovod.coordinator.connections import (
    UnauthenticatedConnections,
    at_most,
    notice_vanished_host,
)
from edl_horovod.coordinator.decide import Candidate
from edl_horovod.coordinator.messages import Change, Hello, Message, Ping, Pong, decode, encode
from edl_horovod.coordinator.wire import (
    MAX_LINE_BYTES,
    Channel,
    WireError,
    greeting,
    new_nonce,
    nonce_of,
)
from edl_horovod.job import hosts

__all__ = ["Report", "Worker", "WorkerServer"]

log = logging.getLogger(__name__)

BACKLOG = 1024
MAX_UNAUTHENTICATED = 256
MAX_SLOTS = 10**hosts.MAX_SLOTS_DIGITS
COMPLAINT_SECONDS = 10.0
"""Unauthenticated connections can fill the log with no more than one line in so many seconds."""


class Report(NamedTuple):
    """What a worker's main thread does, as its listening thread answers a ping.

    The report shows where a worker is stuck, while the answer itself shows that the process lives.
    """

    worker: str
    """Its incarnation."""
    pong: Pong


@dataclass(eq=False)  # Two workers are never equal, whatever their fields say.
class Worker:
    """One incarnation of a worker, as its messages describe it."""

    candidate: Candidate
    is_connected: bool = True
    is_ready: bool = False
    """Warm and in no ring: can be given a place at once."""
    leaving_since: float | None = None
    """When it was asked to go, or asked for it; None for one that is to stay."""
    is_silent: bool = False
    """It did not answer in time, and is not invited until it is heard again."""
    is_hung: bool = False
    """It was ordered to end; never invited again."""
    is_given_up: bool = False
    """Its launcher is to kill it, unless it is heard again."""
    placed: int = 0
    """The last generation that it was given a place in."""
    pong: Pong | None = None
    """Its last answer to a ping; see `current_report`."""
    pid: int = 0
    step: int = -1
    """Steps of the job that it had when it was outside last; -1 for none."""
    formed: int = 0
    """The last generation that it reported as formed."""
    has_state: bool = True
    """Whether it has all of the state of the ring that it is in."""
    announced: int = 0
    """The generation that this connection last announced to it."""
    is_dismissed: bool = False
    was_listed: bool = False
    """Whether host discovery has named its host since it called first."""
    num_failed_formings: int = 0
    """Formings in a row that failed and may have failed because of it."""
    left_out_seconds: float = 0.0
    """How long it last had to wait while a ring trained that formed without it."""
    unreached: set[str] = field(default_factory=set)
    """Addresses of other members that it could not reach since it was last in a ring."""
    not_before: float = 0.0
    """When it is invited again; a worker that spoils ring after ring waits longer and longer."""
    num_unanswered: int = 0
    """Pings since it was last heard."""
    heard_at: float = field(default_factory=time.monotonic)
    connection: asyncio.StreamWriter | None = None
    channel: Channel | None = None

    def send(self, message: Message) -> None:
        """Queue a message; nothing happens where the connection is gone."""
        assert self.connection is not None
        assert self.channel is not None
        if self.is_connected and not self.connection.is_closing():
            self.connection.write(self.channel.seal(encode(message)))

    def heard(self) -> None:
        """Note a sign of life."""
        self.is_given_up = False
        self.heard_at = time.monotonic()
        self.num_unanswered = 0

    def leave(self) -> None:
        """Note that it must go."""
        if self.leaving_since is None:
            self.leaving_since = time.monotonic()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.num_unanswered += 1
        self.send(Ping())

    def announce(self, generation: int) -> None:
        """Tell it, once per connection, that this generation replaces its ring."""
        if self.announced < generation:
            self.announced = generation
            self.send(Change(generation=generation))

    @property
    def is_answering(self) -> bool:
        """Whether it is connected, and answered in time when it was asked last."""
        return self.is_connected and not self.is_silent

    @property
    def is_leaving(self) -> bool:
        """Whether it must go; it may have to hand over the job's state first."""
        return self.leaving_since is not None

    @property
    def current_report(self) -> Report | None:
        """Its report on the last ring that it was given a place in; None without one."""
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


class WorkerServer:
    """Accepts workers, keeps `workers` up to date, and calls back at every change."""

    def __init__(
        self,
        secret: bytes,
        *,
        on_message: Callable[[Worker, Message | None], None],
        on_lost: Callable[[Worker], None],
        hello_seconds: float,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            secret: The job's secret.
            on_message: Called with each message of a worker, `Hello` included; with None for one of
                a kind that is not known here.
            on_lost: Called when a worker's connection ends.
            hello_seconds: How long a connection may take to prove that it is a worker's.
        """
        self.workers: dict[str, Worker] = {}
        self.orders: dict[str, int] = {}
        """Ages of all workers ever seen: one that calls again is as old as it was."""
        self._secret = secret
        self._on_message = on_message
        self._on_lost = on_lost
        self._hello_seconds = hello_seconds
        self._unauthenticated = UnauthenticatedConnections(at_most(MAX_UNAUTHENTICATED))
        self._num_refused = 0
        self._complained_at = -COMPLAINT_SECONDS
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: The port is taken.
        """
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=MAX_LINE_BYTES, backlog=at_most(BACKLOG)
        )
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = None
        self._unauthenticated.enter(writer)
        try:
            channel, hello = await self._greet(reader, writer)
            worker = self._admit(hello, channel, writer)
            self._unauthenticated.leave(writer)
            self._on_message(worker, hello)
            while line := await reader.readline():
                message = decode(channel.open(line))
                if worker.connection is not writer:
                    break  # It called again; what it said before must not undo what it says now.
                worker.heard()
                self._on_message(worker, message)
        except WireError as error:
            self._refuse(error, worker)
        except (OSError, TimeoutError, ValueError) as error:
            log.debug("connection ended: %r", error)
        except asyncio.CancelledError:
            # The coordinator ends with this connection open. Python 3.11's streams raise in a
            # callback if a handler ends as cancelled, so it ends as done.
            pass
        finally:
            self._unauthenticated.leave(writer)
            writer.close()
            # A worker that came back over a new connection is not lost with its old one.
            if worker is not None and worker.connection is writer:
                worker.is_connected = False
                self._on_lost(worker)

    def _refuse(self, error: WireError, worker: Worker | None) -> None:
        if worker is not None:
            log.warning("connection of worker %s ended: %s", worker.label, error)
            return
        self._num_refused += 1
        now = time.monotonic()
        if now - self._complained_at >= COMPLAINT_SECONDS:
            self._complained_at = now
            log.warning("connection refused, %d until now: %s", self._num_refused, error)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, Hello]:
        notice_vanished_host(writer.get_extra_info("socket"))
        server_nonce = new_nonce()
        writer.write(greeting(server_nonce))
        async with asyncio.timeout(self._hello_seconds):
            first = await reader.readline()
            if not first:
                raise ConnectionResetError("it hung up")
            channel = Channel(
                self._secret,
                server_nonce=server_nonce,
                client_nonce=nonce_of(first),
                is_server=True,
            )
            first_message = channel.open(await reader.readline())
        hello = decode(first_message)
        if not isinstance(hello, Hello):
            raise WireError(f"the first message is {first_message['kind']!r}, not hello")
        return channel, hello

    def _admit(self, hello: Hello, channel: Channel, writer: asyncio.StreamWriter) -> Worker:
        name = hello.worker
        if not 0 <= hello.slot < MAX_SLOTS:
            raise WireError(f"{hello.slot} is no slot of a host")
        worker = self.workers.get(name)
        if worker is None:
            order = self.orders.setdefault(name, max(self.orders.values(), default=0) + 1)
            worker = self.workers[name] = Worker(
                Candidate(worker=name, host=hello.host, slot=hello.slot, order=order)
            )
        elif worker.connection is not None:
            worker.connection.close()
        worker.is_connected = True
        worker.announced, worker.is_dismissed = 0, False
        worker.connection, worker.channel = writer, channel
        worker.heard()
        return worker
