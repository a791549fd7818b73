"""Membership by the job's coordinator, over one connection (D8 to D10)."""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl_horovod.coordinator.wire import MAX_LINE_BYTES, Channel, WireError, new_nonce
from edl_horovod.errors import EdlError
from edl_horovod.ring.membership import Dismissed, Membership
from edl_horovod.ring.world import World, form_assigned, leave

__all__ = ["CoordinatedMembership", "CoordinatorAddress"]

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.2
AWAY_SECONDS = 60.0
"""How long a coordinator may be away before its workers give up."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorAddress:
    """Where the coordinator is, who calls, and the secret that proves it."""

    host: str
    port: int
    secret: bytes
    worker_host: str
    """The caller's host, by the name that host discovery uses."""
    slot: int


class CoordinatedMembership(Membership):
    """A warm worker's side of the coordinator's protocol.

    A thread listens; what it hears lands in fields under one lock. While the coordinator is away
    the ring trains on and the thread calls again.
    """

    def __init__(self, address: CoordinatorAddress, *, forming_seconds: float) -> None:
        """Prepare; `join` connects, because only a warm worker may.

        Args:
            address: Of the coordinator.
            forming_seconds: Gloo's time-out, for forming and for transfers.
        """
        self._address = address
        self._forming_seconds = forming_seconds
        # Never used again, unlike a host's name: pid and start time tell incarnations apart (D11).
        self._worker = f"{address.worker_host}:{address.slot}:{os.getpid()}:{time.time_ns()}"
        self._lock = threading.Condition()
        self._socket: socket.socket | None = None
        self._channel: Channel | None = None
        self._place: Mapping[str, Any] | None = None
        self._generation = 0
        self._is_ready = True
        self._change_to = 0
        self._is_listening = False
        self._dismissal: str | None = None
        self._step = -1
        self._reported_at = 0.0
        self._is_closed = False
        self._reason = ""

    def join(self, step: int) -> World:
        """Leave the old ring, wait for a place, form the new ring."""
        leave()
        with self._lock:
            self._step = step
            self._is_ready = True
            self._start_listening()
            self._send("ready", generation=self._generation, step=step, reason=self._reason)
            self._reason = ""
            self._lock.wait_for(lambda: self._dismissal is not None or self._place is not None)
            if self._dismissal is not None:
                raise Dismissed(self._dismissal)
            assert self._place is not None
            place, self._place = self._place, None
            self._generation = place["generation"]
            self._is_ready = False
        return form_assigned(place, timeout_seconds=self._forming_seconds)

    def formed(self, world: World) -> None:
        """Tell the coordinator."""
        with self._lock:
            self._send("formed", generation=world.generation)

    def wants_change(self) -> bool:
        """Whether the coordinator has announced another ring, or this worker is to go."""
        return self._change_to > self._generation or self._dismissal is not None

    def failed(self, reason: str, step: int) -> None:
        """Remember the reason; `join` sends it."""
        self._reason = reason

    def leave_soon(self) -> None:
        """Ask to be left out of the next ring; called from a signal handler's thread."""
        with self._lock:
            self._send("leaving")
            if self._channel is None:
                self._dismissal = "asked to leave"
                self._lock.notify_all()

    def progress(self, step: int) -> None:
        """Tell the coordinator, once a second at most."""
        now = time.monotonic()
        if now - self._reported_at >= 1.0:
            self._reported_at = now
            with self._lock:
                self._step = step
                self._send("progress", step=step)

    def finished(self, result: dict[str, Any]) -> None:
        """Tell the coordinator, and wait until it dismisses this worker."""
        self._last_word("finished", result=result)

    def report_error(self, error: EdlError) -> None:
        """Tell the coordinator, which ends the job."""
        described = {"error": type(error).__name__, "message": str(error)[:30_000]}
        self._last_word("failed", error=described)

    def close(self) -> None:
        """Leave the ring and hang up."""
        leave()
        with self._lock:
            self._is_closed = True
            if self._socket is not None:
                self._socket.close()

    def _last_word(self, kind: str, **fields: Any) -> None:
        deadline = time.monotonic() + AWAY_SECONDS
        with self._lock:
            self._start_listening()
            self._lock.wait_for(
                lambda: self._channel is not None or self._dismissal is not None, AWAY_SECONDS
            )
            self._send(kind, **fields)
            self._lock.wait_for(
                lambda: self._dismissal is not None, max(0.0, deadline - time.monotonic())
            )

    def _start_listening(self) -> None:
        """Connect at the first need: a worker calls when it is warm, or cannot become so."""
        if not self._is_listening:
            self._is_listening = True
            threading.Thread(target=self._listen, name="membership", daemon=True).start()

    # -- the listening thread
    # -----------------------------------------------------------------------

    def _listen(self) -> None:
        away_since = time.monotonic()
        while not self._is_closed:
            try:
                with self._connect() as connection:
                    lines = connection.makefile("rb")
                    self._greet(connection, lines)
                    away_since = time.monotonic()
                    while line := lines.readline(MAX_LINE_BYTES):
                        self._hear(line)
                        away_since = time.monotonic()
            except (OSError, WireError) as error:
                log.debug("coordinator: %s", error)
            with self._lock:
                self._socket = self._channel = None
                if self._dismissal is not None or self._is_closed:
                    self._dismissal = self._dismissal or "closed"
                    self._lock.notify_all()
                    return
                if time.monotonic() - away_since > AWAY_SECONDS:
                    self._dismissal = f"the coordinator was away for {AWAY_SECONDS:.0f} s"
                    self._lock.notify_all()
                    return
            time.sleep(RETRY_SECONDS)

    def _connect(self) -> socket.socket:
        where = (self._address.host, self._address.port)
        connection = socket.create_connection(where, timeout=CONNECT_SECONDS)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _greet(self, connection: socket.socket, lines: Any) -> None:
        greeting = lines.readline(MAX_LINE_BYTES).decode().split()
        if len(greeting) != 2 or greeting[0] != "edl":
            raise WireError("what answers is no coordinator")
        nonce = new_nonce()
        channel = Channel(
            self._address.secret, server_nonce=greeting[1], client_nonce=nonce, is_server=False
        )
        connection.sendall(f"edl {nonce}\n".encode())
        with self._lock:
            self._socket, self._channel = connection, channel
            self._send(
                "hello",
                worker=self._worker,
                host=self._address.worker_host,
                slot=self._address.slot,
                pid=os.getpid(),
                generation=self._generation,
                is_ready=self._is_ready and self._place is None,
                step=self._step,
            )
            self._lock.notify_all()

    def _hear(self, line: bytes) -> None:
        with self._lock:
            assert self._channel is not None
            message = self._channel.open(line)
            kind = message["kind"]
            if kind == "ping":
                self._send("pong")
            elif kind == "assign":
                self._place = message
            elif kind == "change":
                self._change_to = message["generation"]
            elif kind == "stop":
                self._dismissal = message["reason"]
            self._lock.notify_all()

    def _send(self, kind: str, **fields: Any) -> None:
        """Send if connected; what is lost with a connection is told again by the next hello."""
        if self._socket is not None and self._channel is not None:
            try:
                self._socket.sendall(self._channel.seal({"kind": kind, **fields}))
            except OSError as error:
                log.debug("coordinator: %s", error)
