"""Membership by the job's coordinator, over one connection (D8 to D10)."""

import contextlib
import faulthandler
import json
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edl_horovod.coordinator import messages, wire
from edl_horovod.coordinator.messages import Message, Place
from edl_horovod.coordinator.wire import Channel, WireError
from edl_horovod.errors import ConfigError, EdlError, JobFailed, PartyError, error_kind
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.world import World
from edl_horovod.job import outcome
from edl_horovod.job.account import Cause
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.ring.membership.base import EXIT_AT_SIGTERM, Dismissed, Membership
from edl_horovod.ring.membership.links import PartyLinks

log = logging.getLogger(__name__)

MAX_ERROR_BYTES = 30_000
EXIT_HUNG = 9
"""Not an exit code of an `EdlError`, so the slot's worker is restarted."""
TRACE_SECONDS = 2.0
"""Longest wait for the last events of a worker that hangs."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorAddress:
    """The coordinator's address, and how this worker identifies itself."""

    host: str
    port: int
    secret: bytes
    worker_host: str
    """This worker's host, by the name that host discovery uses."""
    slot: int


@dataclass(frozen=True, kw_only=True)
class CoordinatedTimings:
    """Time limits of a worker, in seconds."""

    forming_seconds: float
    """Gloo's time-out, for the forming of a ring and for transfers."""
    first_seconds: float
    """How long the coordinator may take to answer for the first time."""
    away_seconds: float
    """How long it may be away afterwards before its workers give up."""
    connect_seconds: float = 5.0
    retry_seconds: float = 0.2
    quiet_seconds: float = 15.0
    """Silence after which the worker connects again, as a coordinator pings every 2 s. Also the
    time-out for sending."""
    complaint_seconds: float = 10.0
    """Interval of log lines about a coordinator that is away."""
    leave_alone_seconds: float = 1.0
    """How long a worker that was asked to leave waits for a coordinator that is away."""


class CoordinatedMembership(Membership):
    """A warm worker's side of the coordinator's protocol.

    A thread receives messages and stores them in fields, under one lock. While the coordinator is
    away, the ring trains on, and the thread tries to connect again.
    """

    def __init__(
        self,
        horovod: Horovod,
        address: CoordinatorAddress,
        timings: CoordinatedTimings,
        result_file: Path | None = None,
        links: PartyLinks | None = None,
    ) -> None:
        """Prepare; `join` connects, because only a warm worker may.

        Args:
            horovod: Forms rings.
            address: The coordinator.
            timings: Time limits.
            result_file: File for the outcome of a party of a federated training; None for a job's
                worker, whose coordinator writes the job's outcome.
            links: Encrypt the traffic of a party; `close` closes them.
        """
        super().__init__(horovod)
        self._links = links
        self._result_file = result_file
        self._address = address
        self._timings = timings
        self._patience_seconds = timings.first_seconds
        self._complained_at = 0.0
        # Unique: pid and start time distinguish the incarnations of a worker (D11).
        self._worker = f"{address.worker_host}:{address.slot}:{os.getpid()}:{time.time_ns()}"
        self._lock = threading.Condition()
        self._socket: socket.socket | None = None
        self._channel: Channel | None = None
        self._place: Place | None = None
        self._is_ready = False
        self._is_short = False
        """Whether there are fewer workers than min_np, as the coordinator told."""
        self._is_away = False
        """Whether the coordinator was lost, or could not be reached."""
        self._formed = 0
        self._has_job_state = True
        self._is_leaving = False
        self._final: messages.Finished | messages.Failed | None = None
        self._change_to = 0
        self._is_listening = False
        self._dismissal: messages.Stop | None = None
        self._step = -1
        self._reported_at = 0.0
        self._is_closed = False
        self._reason = ""
        self._unreached: tuple[str, ...] = ()

    def join(self, step: int) -> World:
        """Leave the old ring, wait for a place, form the new ring."""
        self.activity.begin("joins", f"leaving the ring after step {step}", "forming")
        self._horovod.leave()
        with self._lock:
            self._step = step
            self._is_ready = True
            self._start_listening()
            generation, reason, unreached = self._generation, self._reason, self._unreached
            self._send(
                messages.Ready(generation=generation, step=step, reason=reason, unreached=unreached)
            )
            self._reason, self._unreached = "", ()
            self._wait_for_place()
            if (stop := self._dismissal) is not None:
                is_final = stop.is_over or self._is_leaving
                if self._result_file is not None and not self._is_leaving:
                    outcome.save(self._result_file, _end_of_party(stop))
                raise Dismissed(stop.reason, is_final=is_final, has_state=stop.has_state)
            assert self._place is not None
            place, self._place = self._place, None
            self._generation = place.generation
            self._is_ready = self._is_short = False
        self.activity.begin("joins", f"forming generation {self._generation}", "forming")
        self.expect(World.of(place), max(0, step, place.step))
        return self._form(place)

    def _form(self, place: Place) -> World:
        seconds = self._timings.forming_seconds
        if self._links is None:
            return self._horovod.form_assigned(
                place, timeout_seconds=seconds, is_abandoned=self.wants_change
            )
        try:
            place = self._links.place(place)
            return self._horovod.form_assigned(
                place, timeout_seconds=seconds, is_abandoned=self.wants_change
            )
        except OSError as error:
            raise CollectiveFailed(f"this party cannot listen to others: {error}") from error
        except CollectiveFailed as failure:
            raise self._links.explained(failure) from failure

    def _wait_for_place(self) -> None:
        # A ring forms sooner than that, so from then on this rank has no place in it.
        spare_at = time.monotonic() + (self._timings.forming_seconds if self._formed else 0.0)
        former: Cause | None = None
        while self._dismissal is None and self._place is None:
            left = spare_at - time.monotonic()
            if (cause := self._cause_of_wait("forming" if left > 0 else "warm")) != former:
                self.activity.begin("joins", "waiting for a place", cause)
                former = cause
            self._lock.wait(left if left > 0 else None)

    def _cause_of_wait(self, usual: Cause) -> Cause:
        """What this rank waits for outside a ring."""
        if self._is_away:
            return "coordinator_away"
        return "below_min_np" if self._is_short else usual

    def formed(self, world: World, *, has_state: bool = True) -> None:
        """Report to the coordinator that the ring is formed, and who has its state."""
        with self._lock:
            self._formed, self._has_job_state = world.generation, has_state
            self._send(messages.Formed(generation=world.generation, has_state=has_state))

    def can_stream_state(self) -> bool:
        """Whether this worker stays; for other leaving members, the coordinator waits itself."""
        return not self._is_leaving

    def wants_change(self) -> bool:
        """Whether the coordinator has announced another ring, or has dismissed this worker."""
        return self._change_to > self._generation or self._dismissal is not None

    def failed(self, failure: CollectiveFailed) -> None:
        """Remember the reason; `join` sends it."""
        super().failed(failure)
        self._reason, self._unreached = str(failure), tuple(sorted(failure.unreached))

    def leave_soon(self) -> None:
        """Ask to be left out of the next ring; called from a signal handler's thread."""
        if not self._is_listening:
            os._exit(EXIT_AT_SIGTERM)  # It is still getting warm, and has no ring to leave.
        with self._lock:
            self._is_leaving = True
            self._send(messages.Leaving())

    def progress(self, step: int) -> None:
        """Report to the coordinator, once a second at most."""
        now = time.monotonic()
        if now - self._reported_at >= 1.0:
            self._reported_at = now
            with self._lock:
                self._step = step
                self._send(messages.Progress(step=step))

    def finished(self, result: Success) -> None:
        """Report to the coordinator, and wait until it dismisses this worker."""
        if self._result_file is not None:
            outcome.save(self._result_file, result)
            # A path and the sums of a party are not for the coordinator.
            result = replace(result, metrics={}, examples=None, output="")
        self._report_end(messages.Finished(result=result))

    def report_error(self, error: EdlError) -> None:
        """Report to the coordinator, which ends the job, or lets the others go on without a party.

        Others see only those errors of a party that name none of its records and paths.
        """
        if self._result_file is not None:
            outcome.save(self._result_file, Failure.of(error))
            if not isinstance(error, PartyError):
                name = self._address.worker_host
                error = PartyError(f"Party {name!r} failed; its own log says why.")
        failure = Failure.of(error)
        shortened = replace(failure, message=_shortened(failure.message))
        self._report_end(messages.Failed(error=shortened))

    def close(self) -> None:
        """Leave the ring and hang up."""
        self._horovod.leave()
        with self._lock:
            self._is_closed = True
            self._hang_up()
        if self._links is not None:
            self._links.close()

    def _report_end(self, message: messages.Finished | messages.Failed) -> None:
        """Send a message until the coordinator has received it, that is until it says stop."""
        deadline = time.monotonic() + self._timings.away_seconds
        self.activity.begin("unwatched", "the end of the job", "ending")
        with self._lock:
            self._start_listening()
            self._final = message
            self._send(message)
            former: Cause = "ending"
            while self._dismissal is None and (left := deadline - time.monotonic()) > 0:
                cause: Cause = "coordinator_away" if self._is_away else "ending"
                if cause != former:
                    self.activity.begin("unwatched", "the end of the job", cause)
                    former = cause
                self._lock.wait(left)

    def _start_listening(self) -> None:
        """Connect when first needed: once the worker is warm, or has failed to become so."""
        if not self._is_listening:
            self._is_listening = True
            threading.Thread(target=self._listen, name="membership", daemon=True).start()

    # -- the listening thread

    def _listen(self) -> None:
        away_since = time.monotonic()
        while not self._is_closed:
            try:
                with self._connect() as connection, connection.makefile("rb") as lines:
                    self._greet(connection, lines)
                    while line := lines.readline(wire.MAX_LINE_BYTES):
                        self._hear(line)
                        away_since = time.monotonic()
            except ConfigError as error:
                self._dismiss_for(error)
                return
            except (OSError, WireError, ValueError) as error:
                self._note_failure(error, time.monotonic() - away_since)
            with self._lock:
                self._hang_up()
                self._is_away = True
                if self._dismissal is None and (reason := self._why_give_up(away_since)):
                    self._dismissal = messages.Stop(reason=reason)
                self._lock.notify_all()
                if self._dismissal is not None:
                    return
            time.sleep(self._timings.retry_seconds)

    def _dismiss_for(self, error: ConfigError) -> None:
        """End this party, which has no token for this coordinator."""
        text = str(error)
        with self._lock:
            self._dismissal = messages.Stop(
                reason=text, is_over=True, error=error_kind(error), message=text
            )
            self._lock.notify_all()

    def _note_failure(self, error: Exception, away: float) -> None:
        log.debug("coordinator: %r", error)
        now, address = time.monotonic(), f"{self._address.host}:{self._address.port}"
        if min(away, now - self._complained_at) > self._timings.complaint_seconds:
            self._complained_at = now
            text = "the coordinator %s has been away for %.0f s, at most %.0f: %s"
            log.warning(text, address, away, self._patience_seconds, error)

    def _why_give_up(self, away_since: float) -> str:
        """Why this worker no longer waits for the coordinator; empty if it does."""
        away = time.monotonic() - away_since
        if self._is_closed:
            return "closed"
        if self._is_leaving and away > self._timings.leave_alone_seconds:
            return "asked to leave"
        if away > self._patience_seconds:
            return f"the coordinator was away for {away:.0f} s"
        return ""

    def _connect(self) -> socket.socket:
        if self._links is not None:
            connection = self._links.connect(self._timings.connect_seconds)
            connection.settimeout(self._timings.quiet_seconds)
            return connection
        address = (self._address.host, self._address.port)
        connection = socket.create_connection(address, timeout=self._timings.connect_seconds)
        connection.settimeout(self._timings.quiet_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.notice_vanished_host(connection)
        return connection

    def _greet(self, connection: socket.socket, lines: Any) -> None:
        server_nonce, _ = wire.greeting_of(lines.readline(wire.MAX_LINE_BYTES))
        nonces = {"server_nonce": server_nonce, "client_nonce": wire.new_nonce()}
        channel = Channel(self._address.secret, **nonces, is_server=False)
        party = self._address.worker_host if self._result_file is not None else ""
        connection.sendall(wire.greeting(nonces["client_nonce"], party))
        with self._lock:
            self._socket, self._channel = connection, channel
            self._is_away = self._is_short = False
            self._lock.notify_all()
            # `Hello` repeats everything that may have been lost with an earlier connection.
            self._send(
                messages.Hello(
                    worker=self._worker,
                    host=self._address.worker_host,
                    slot=self._address.slot,
                    pid=os.getpid(),
                    generation=self._generation,
                    formed=self._formed,
                    is_ready=self._is_ready and self._place is None,
                    is_leaving=self._is_leaving,
                    step=self._step,
                    has_state=self._has_job_state,
                )
            )
            if self._final is not None:
                self._send(self._final)

    def _hear(self, line: bytes) -> None:
        with self._lock:
            if self._channel is None:
                raise WireError("the connection was given up")
            message = messages.decode(self._channel.open(line))
            self._patience_seconds = self._timings.away_seconds
            match message:
                case messages.Ping():
                    now, pong = time.monotonic(), self.activity.report(self._generation)
                    self._send(replace(pong, sent=now))
                    if (timeline := self.activity.timeline) is not None:
                        clocks = message.pong_sent, message.heard, message.sent
                        timeline.add_exchange(*clocks, arrived=now)
                case Place():
                    # A coordinator that hung, and was replaced, may send an old place.
                    if message.generation > self._generation:
                        self._place = message
                case messages.Change():
                    self._change_to = max(self._change_to, message.generation)
                case messages.Shortage():
                    self._is_short = message.is_short
                case messages.Dump():
                    self._leave_traces(message.reason)
                case messages.End():
                    self._leave_traces(message.reason, is_end=True).join(TRACE_SECONDS)
                    os._exit(EXIT_HUNG)
                case messages.Stop():
                    self._dismissal = message
            self._lock.notify_all()

    def _send(self, message: Message) -> None:
        """Send if connected; the next `Hello` repeats what was lost with a connection."""
        if self._socket is not None and self._channel is not None:
            try:
                self._socket.sendall(self._channel.seal(messages.encode(message)))
            except OSError as error:
                # A line may have been sent in part, after which the connection is useless.
                log.debug("coordinator: %r", error)
                self._hang_up()

    def _leave_traces(self, reason: str, *, is_end: bool = False) -> threading.Thread:
        """Write all threads' stacks into the log, and a trace into the events, in a thread.

        This works while the main thread hangs. Where the thread hangs as well, as on a dead file
        server, this worker still answers.
        """
        log.error("%s; the stacks of all threads:", reason)
        faulthandler.dump_traceback(all_threads=True)

        def write() -> None:
            self.activity.leave_trace(reason, self._generation)
            if is_end:
                self.activity.end_as_hung()

        thread = threading.Thread(target=write, name="trace", daemon=True)
        thread.start()
        return thread

    def _hang_up(self) -> None:
        """Close the connection; the listening thread notices and connects again."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # `close` alone would not wake the thread that reads.
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._socket = self._channel = None


def _end_of_party(stop: messages.Stop) -> Failure:
    """The outcome of a party that the coordinator dismisses before it has a result."""
    if stop.error:
        return Failure(error=stop.error, message=stop.message)
    return Failure.of(
        JobFailed(
            "The federated training ended for this party before it had a trained model.",
            received=stop.reason,
            hint="Ask the operator of the coordinator. The same command with resume=auto goes on"
            " from the newest checkpoint.",
        )
    )


def _shortened(text: str) -> str:
    """Cut a text so that it fits into a message; in JSON, a character can take 12 bytes."""
    while len(json.dumps(text)) > MAX_ERROR_BYTES:
        text = text[: len(text) * 3 // 4]
    return text
