"""The gRPC server, the only module that imports gRPC, and the sessions of its clients.

The calls of a session run one after the other, in a process that runs their statements, and the
number of sessions is limited. A session whose process has state for its next call, such as an open
transaction, waits for that call for a limited time, unless another session needs its place.
"""

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from edl_horovod.errors import ConfigError, MissingDependency, how_to_install
from edl_horovod.proto.sqlflow_pb2 import Request
from edl_horovod.sql.service.access import TOKEN_VARIABLE, Access, ListenAddress
from edl_horovod.sql.service.frames import HEADER, CallRequest, FrameKind, ServiceSettings
from edl_horovod.sql.settings import DATABASE_VARIABLE

MAX_CALLS = 16
"""Maximum number of calls of a session, including the running one."""
IDLE_SECONDS = 300.0
"""How long a session waits for its next call."""
MAX_LOST_SESSIONS = 1_000
"""Maximum number of ended sessions whose clients are informed by their next call."""
_CALL_INTERRUPTED = "one of its calls was interrupted"
END_SECONDS = 40.0
"""How long a process may take to end before it is killed; it is longer than the limits that the
process itself observes."""


class CallFailed(Exception):
    """A call failed.

    Args:
        code: The name of a gRPC status code.
        text: The message for the client.
    """

    def __init__(self, code: str, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(text)


class SessionProcess:
    """A process that runs the statements of a session and leads a process group.

    After a call that leaves state in its database connection, such as an open transaction, the
    process waits for the next call of the session.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Wrap a started process; use `begin` instead."""
        self._process = process
        self._is_interrupted = False
        self.state = ""
        """What the end of the process would lose, as a phrase; empty during a call."""
        self.is_done = False
        """Whether the last call ended by itself: its statements succeeded, or one failed."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def begin(
        cls, request: CallRequest, waiting: "SessionProcess | None"
    ) -> "SessionProcess":
        """Run the statements of a call in the process that waits for it, or in a new one."""
        if waiting is not None:
            waiting.send(request)
            return waiting
        secrets = (TOKEN_VARIABLE, DATABASE_VARIABLE)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edl_horovod.sql.service.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in secrets},
            # Ctrl-C in a terminal reaches the service alone, which ends its calls in order.
            start_new_session=True,
        )
        session_process = cls(process)
        session_process.send(request)
        return session_process

    def send(self, request: CallRequest) -> None:
        """Send the statements of a call to the process; `responses` yields their responses."""
        self.state, self.is_done = "", False
        # Its stdin stays open, because closing it ends the statements.
        self._stdin.write(json.dumps(asdict(request)).encode() + b"\n")

    async def responses(self) -> AsyncIterator[bytes]:
        """The serialized responses of the call.

        Raises:
            CallFailed: A statement failed, or the process died.
        """
        state = ""
        try:
            while True:
                kind, num_bytes = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
                content = await self._stdout.readexactly(num_bytes)
                if kind == FrameKind.STATE:
                    state = content.decode()
                    continue
                if kind in (FrameKind.DONE, FrameKind.FAILURE):
                    self.state, self.is_done = state, not self._is_interrupted
                if kind == FrameKind.DONE:
                    return
                if kind == FrameKind.FAILURE:
                    code, _, text = content.decode().partition("\n")
                    raise CallFailed(code, text)
                yield content
        except asyncio.IncompleteReadError:
            exit_code = await self._process.wait()
            if self._is_interrupted:
                raise CallFailed("CANCELLED", "The statement was interrupted.") from None
            raise CallFailed(
                "INTERNAL",
                f"The process of the statements ended with exit code {exit_code}. See the log of"
                " the service.",
            ) from None

    def interrupt(self) -> None:
        """Ask the process to end its statements."""
        self._is_interrupted = True
        self._stdin.close()

    async def end(self) -> None:
        """End the process; if it exceeds `END_SECONDS`, kill it with its process group."""
        self._stdin.close()
        # The process must not block on a full pipe.
        draining = asyncio.ensure_future(self._drain())
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        finally:
            draining.cancel()

    async def _drain(self) -> None:
        while await self._stdout.read(1 << 16):
            pass


@dataclass
class Session:
    """A session with calls, or with a process that waits for the next call."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0
    process: SessionProcess | None = None
    """The process that waits for the next call."""
    state: str = ""
    """What the process would have lost before the running call, as a phrase."""
    timer: asyncio.TimerHandle | None = None


@dataclass
class Sessions:
    """The sessions with calls, and those that wait for their next call."""

    max_sessions: int
    """The maximum number of sessions at the same time."""
    end: Callable[[SessionProcess], None]
    """Ends the process of a session that stops waiting."""
    idle_seconds: float = IDLE_SECONDS
    """How long a session waits for its next call."""
    _sessions: dict[Hashable, Session] = field(default_factory=dict, init=False)
    _lost: dict[Hashable, str] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def turn(self, name: Hashable) -> AsyncIterator[Session]:
        """Wait until the earlier calls of a session have ended, and run a call within the `with`.

        Raises:
            CallFailed: There are too many sessions, or too many calls of this one; or the session
                has ended and lost its state.
        """
        if lost := self._lost.pop(name, ""):
            raise CallFailed("ABORTED", lost)
        session = self._sessions.get(name)
        if session is None:
            self._make_room()
            session = self._sessions[name] = Session()
        if session.num_calls >= MAX_CALLS:
            problem = f"This session has {MAX_CALLS} waiting calls. Try again later."
            raise CallFailed("RESOURCE_EXHAUSTED", problem)
        session.num_calls += 1
        if session.timer is not None:
            session.timer.cancel()
        try:
            # The lock is fair: calls run in the order in which they arrived.
            async with session.lock:
                if session.process is None and session.state:
                    state, session.state = session.state, ""
                    raise CallFailed("ABORTED", _lost_message(state, _CALL_INTERRUPTED))
                try:
                    yield session
                finally:
                    if session.process is not None:
                        session.state = session.process.state
        finally:
            session.num_calls -= 1
            if not session.num_calls:
                self._release(name, session)

    def end_idle(self) -> None:
        """End the sessions that wait for their next call."""
        for name, session in tuple(self._sessions.items()):
            if not session.num_calls:
                self._end_session(name, "the service ended")

    def _release(self, name: Hashable, session: Session) -> None:
        """Return the session to the waiting ones, or remove it if it has no process."""
        if session.process is None:
            del self._sessions[name]
            self._note_lost(name, session.state, _CALL_INTERRUPTED)
            return
        # The order of the dictionary is the order of waiting, the longest first.
        self._sessions[name] = self._sessions.pop(name)
        reason = f"it had no call for {self.idle_seconds:.0f} s"
        session.timer = asyncio.get_running_loop().call_later(
            self.idle_seconds, self._end_session, name, reason
        )

    def _make_room(self) -> None:
        if len(self._sessions) < self.max_sessions:
            return
        for name, session in self._sessions.items():
            if not session.num_calls:
                self._end_session(name, "other sessions needed its place")
                return
        problem = f"All {self.max_sessions} sessions are busy. Try again later."
        raise CallFailed("RESOURCE_EXHAUSTED", problem)

    def _end_session(self, name: Hashable, reason: str) -> None:
        session = self._sessions.pop(name)
        assert session.process is not None
        assert session.timer is not None
        session.timer.cancel()
        self._note_lost(name, session.state, reason)
        self.end(session.process)

    def _note_lost(self, name: Hashable, state: str, reason: str) -> None:
        if not state:
            return
        self._lost[name] = _lost_message(state, reason)
        if len(self._lost) > MAX_LOST_SESSIONS:
            del self._lost[next(iter(self._lost))]


def _lost_message(state: str, reason: str) -> str:
    return (
        f"The session has ended, because {reason}, and lost {state}. Uncommitted changes are rolled"
        " back. The next call begins a new session."
    )


try:
    import grpc
except ImportError as e:
    problem = "The SQL service needs the package grpcio, which is not installed."
    raise MissingDependency(problem, hint=f"To get it, {how_to_install('sqlflow')}.") from e


log = logging.getLogger(__name__)

KEEPALIVE_MS = 20_000
"""Interval of keepalive pings, and how long to wait for their answer."""
HANDSHAKE_SECONDS = 5
"""A connection without a completed handshake is closed after this time."""
MAX_CONNECTIONS = 4_096
MAX_STREAMS = 256
"""Maximum number of concurrent calls on one connection."""
WARNING_INTERVAL_SECONDS = 10.0
"""Minimum time between two warnings about calls without the token."""
MAX_ERROR_BYTES = 4_000
"""Maximum size of an error message; clients refuse headers above 8 KiB."""
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1_000),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
)


def serve(
    access: Access,
    listen: ListenAddress,
    settings: ServiceSettings,
    *,
    max_sessions: int,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM, which also end running statements.

    Args:
        access: The token and the allowed databases.
        listen: The address to listen on.
        settings: The settings of the statements.
        max_sessions: Maximum number of sessions at the same time.
        on_ready: Called with the address once clients can connect.

    Raises:
        ConfigError: The address is not available, or the certificate is invalid.
    """
    asyncio.run(_serve(_Service(access, settings, max_sessions), listen, on_ready))


async def _serve(
    service: "_Service", listen: ListenAddress, on_ready: Callable[[str], None]
) -> None:
    connections = ("grpc.max_allowed_incoming_connections", _max_connections())
    server = grpc.aio.server(options=(*_OPTIONS, connections))
    run = grpc.unary_stream_rpc_method_handler(service.run, request_deserializer=Request.FromString)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("proto.SQLFlow", {"Run": run}),)
    )
    port = _open_port(server, listen)
    ending = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    await server.start()
    try:
        on_ready(f"{_bracketed(listen.host)}:{port}")
        await ending.wait()
    finally:
        await service.end()
        await server.stop(grace=1)


def _max_connections() -> int:
    """Half of this process's limit of open files; the pipes of its child processes need others."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = open_files == resource.RLIM_INFINITY
    return MAX_CONNECTIONS if is_unlimited else min(MAX_CONNECTIONS, open_files // 2)


def _open_port(server: Any, listen: ListenAddress) -> int:
    address = f"{_bracketed(listen.host)}:{listen.port}"
    try:
        if not listen.certificate:
            return int(server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials([(listen.key, listen.certificate)])
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as e:
        files = ", and that the files of --certificate and --key are valid"
        tls = files if listen.certificate else ""
        raise ConfigError(
            f"The service cannot listen on {address}.",
            received=f"--host={listen.host}, --port={listen.port}",
            hint=f"Check that the address belongs to this machine and the port is free{tls}.",
        ) from e


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Service:
    """Answers calls, each in the process of its session."""

    def __init__(self, access: Access, settings: ServiceSettings, max_sessions: int) -> None:
        self._access = access
        self._settings = settings
        self._sessions = Sessions(max_sessions, end=self._end_process)
        self._refused_calls = _RefusedCalls()
        self._processes: set[SessionProcess] = set()
        self._end_tasks: set[asyncio.Future[None]] = set()
        self._num_running = 0
        self._is_ending = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def run(self, request: Request, context: Any) -> None:
        """Handle `Run`: write its responses, or abort with an error."""
        try:
            call = self._call_request(request)
            # Without a user every connection is a session.
            user = request.session.user_id
            name = f"user {user}" if user else f"peer {context.peer()}"
            async with self._sessions.turn((name, call.db)) as session:
                await self._run(call, context, session)
        except CallFailed as e:
            if e.code == "UNAUTHENTICATED":
                self._refused_calls.count(context.peer())
            else:
                log.info("a call from %s failed: %s %s", context.peer(), e.code, e.text)
            await context.abort(grpc.StatusCode[e.code], _shortened(e.text))

    async def end(self) -> None:
        """Refuse new calls and end the running ones."""
        self._is_ending = True
        self._sessions.end_idle()
        for process in self._processes:
            process.interrupt()
        await self._is_idle.wait()
        self._refused_calls.warn()

    def _call_request(self, request: Request) -> CallRequest:
        if not self._access.is_token(request.session.token):
            problem = "wrong" if request.session.token else "missing"
            raise CallFailed("UNAUTHENTICATED", f"The token of the session is {problem}.")
        db = self._access.database(request.session.db_conn_str)
        if db is None:
            raise CallFailed(
                "PERMISSION_DENIED",
                "This service does not allow the database of the session. Leave db_conn_str empty"
                " for the default database, or ask the operator to add the URL to the file of"
                " --databases.",
            )
        if not request.sql.strip(" \t\r\n;"):
            raise CallFailed("INVALID_ARGUMENT", "The call has no statement.")
        return CallRequest(
            sql=request.sql,
            db=db,
            settings=self._settings,
            exit_on_submit=request.session.exit_on_submit,
        )

    async def _run(self, request: CallRequest, context: Any, session: Session) -> None:
        if self._is_ending:
            raise CallFailed("UNAVAILABLE", "The service is shutting down.")
        self._begin_work()
        waiting, session.process = session.process, None
        starting = asyncio.ensure_future(SessionProcess.begin(request, waiting))
        try:
            process = await asyncio.shield(starting)
            self._processes.add(process)
            if self._is_ending:
                process.interrupt()
            async for response in process.responses():
                await context.write(response)
        except OSError as e:
            raise CallFailed(
                "RESOURCE_EXHAUSTED",
                f"The service cannot start a process for the statements: {e.strerror}. Try again"
                " later.",
            ) from e
        finally:
            # A disconnected client cancels this task, and its statements must end first.
            await _uncancelled(self._end_call(starting, session))

    async def _end_call(self, starting: "asyncio.Future[SessionProcess]", session: Session) -> None:
        """Keep the process for the next call of its session, or end it."""
        try:
            with suppress(OSError):  # It did not start, which `_run` reports.
                process = await starting
                try:
                    if process.is_done:
                        session.state = ""
                    if process.state and not self._is_ending:
                        session.process = process
                    else:
                        await process.end()
                finally:
                    self._processes.discard(process)
        finally:
            self._finish_work()

    def _end_process(self, process: SessionProcess) -> None:
        """End a process that waits for a call."""
        self._begin_work()
        ending = asyncio.ensure_future(process.end())
        # The event loop keeps no strong reference to a task.
        self._end_tasks.add(ending)
        ending.add_done_callback(self._end_tasks.discard)
        ending.add_done_callback(lambda _: self._finish_work())

    def _begin_work(self) -> None:
        """Count a call or the end of a process, for which the end of the service waits."""
        self._num_running += 1
        self._is_idle.clear()

    def _finish_work(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._is_idle.set()


class _RefusedCalls:
    """Counts calls without the token and limits the warnings about them."""

    def __init__(self) -> None:
        self._num_calls, self._last_peer = 0, ""
        """Both since the last warning."""
        self._next_warning = 0.0

    def count(self, peer: str) -> None:
        """Count a call, and warn if the last warning is long enough ago."""
        self._num_calls, self._last_peer = self._num_calls + 1, peer
        if time.monotonic() >= self._next_warning:
            self.warn()

    def warn(self) -> None:
        """Log a warning about the calls since the last warning, if any."""
        if self._num_calls:
            calls = f"{self._num_calls} call{'s' if self._num_calls > 1 else ''}"
            log.warning("refused %s without the token, the last of %s", calls, self._last_peer)
        self._num_calls = 0
        self._next_warning = time.monotonic() + WARNING_INTERVAL_SECONDS


async def _uncancelled(awaitable: Any) -> None:
    """Finish an awaitable even if this task is cancelled."""
    task = asyncio.ensure_future(awaitable)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


def _shortened(text: str) -> str:
    """Cut a text so that it fits into a header, in which non-ASCII text is percent-encoded."""
    if len(quote(text)) <= MAX_ERROR_BYTES:
        return text
    while len(quote(text)) > MAX_ERROR_BYTES - 3:
        text = text[: len(text) * 9 // 10]
    return f"{text}..."
