"""The gRPC server; the only module that imports gRPC."""

import asyncio
import logging
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from edl_horovod.errors import ConfigError, MissingDependency, how_to_install
from edl_horovod.proto.sqlflow_pb2 import Request
from edl_horovod.sql.service.access import Access, Listen
from edl_horovod.sql.service.call import Call, CallFailed
from edl_horovod.sql.service.frames import CallOrder, Settings
from edl_horovod.sql.service.sessions import Session, Sessions, TooMany

try:
    import grpc
except ImportError as e:
    raise MissingDependency(
        "The SQL service needs the package grpcio, which is not installed.",
        hint=f"To have it, {how_to_install('sqlflow')}.",
    ) from e

__all__ = ["serve"]

log = logging.getLogger(__name__)

KEEPALIVE_MS = 20_000
"""A client that does not answer for so long, twice, has vanished."""
HANDSHAKE_SECONDS = 5
"""A connection on which nobody has spoken the protocol by then is closed."""
MOST_CONNECTIONS = 4_096
MOST_STREAMS = 256
"""Calls at a time on one connection, whoever makes them."""
COMPLAINT_SECONDS = 10.0
"""Calls without the token write a line at most so often."""
LONGEST_TEXT = 4_000
"""Bytes of an error: clients refuse headers of more than 8 KiB."""
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1_000),
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
)


def serve(
    access: Access,
    listen: Listen,
    settings: Settings,
    *,
    most_sessions: int,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM, which end the statements that run, too.

    Args:
        access: Who may use it.
        listen: Where.
        settings: Of the statements.
        most_sessions: Sessions at a time.
        on_ready: Is called with the address once clients can connect.

    Raises:
        ConfigError: The address cannot be listened on, or the certificate cannot be used.
    """
    asyncio.run(_serve(_Service(access, settings, most_sessions), listen, on_ready))


async def _serve(service: "_Service", listen: Listen, on_ready: Callable[[str], None]) -> None:
    connections = ("grpc.max_allowed_incoming_connections", _most_connections())
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


def _most_connections() -> int:
    """Half of the files that this process may open: the calls' processes need some, too."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_endless = open_files == resource.RLIM_INFINITY
    return MOST_CONNECTIONS if is_endless else min(MOST_CONNECTIONS, open_files // 2)


def _open_port(server: Any, listen: Listen) -> int:
    address = f"{_bracketed(listen.host)}:{listen.port}"
    try:
        if not listen.certificate:
            return int(server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials([(listen.key, listen.certificate)])
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as e:
        tls = ", and what --certificate and --key hold" if listen.certificate else ""
        raise ConfigError(
            f"Nothing can be served at {address}.",
            received=f"--host={listen.host}, --port={listen.port}",
            hint=f"See whether the address is this machine's and the port is free{tls}.",
        ) from e


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Service:
    """Answers calls."""

    def __init__(self, access: Access, settings: Settings, most_sessions: int) -> None:
        self._access = access
        self._settings = settings
        self._sessions = Sessions(most_sessions, end=self._end_process)
        self._intruders = _Intruders()
        self._calls: set[Call] = set()
        self._endings: set[asyncio.Future[None]] = set()
        self._num_running = 0
        self._is_ending = False
        self._none_runs = asyncio.Event()
        self._none_runs.set()

    async def run(self, request: Request, context: Any) -> None:
        """Answer `Run`: its responses, or an error."""
        code, text = "", ""
        try:
            order = self._order(request)
            # Without a user each connection is a session.
            name = f"user {request.session.user_id}"
            if not request.session.user_id:
                name = f"peer {context.peer()}"
            async with self._sessions.turn((name, order.db)) as session:
                await self._run(order, context, session)
        except CallFailed as e:
            code, text = e.code, e.text
        except TooMany as e:
            code, text = "RESOURCE_EXHAUSTED", str(e)
        if code == "UNAUTHENTICATED":
            self._intruders.count(context.peer())
        elif code:
            log.info("a call of %s failed: %s %s", context.peer(), code, text)
        if code:
            await context.abort(grpc.StatusCode[code], _shortened(text))

    async def end(self) -> None:
        """Refuse calls, and end those that run."""
        self._is_ending = True
        self._sessions.end_idle()
        for call in self._calls:
            call.interrupt()
        await self._none_runs.wait()
        self._intruders.complain()

    def _order(self, request: Request) -> CallOrder:
        if not self._access.is_token(request.session.token):
            what = "not the token of this service" if request.session.token else "missing"
            raise CallFailed("UNAUTHENTICATED", f"The token of the session is {what}.")
        db = self._access.database(request.session.db_conn_str)
        if db is None:
            raise CallFailed(
                "PERMISSION_DENIED",
                "This service does not allow the database of the session. Leave db_conn_str empty"
                " for its own, or have its operator add the URL to the file of --databases.",
            )
        if not request.sql.strip(" \t\r\n;"):
            raise CallFailed("INVALID_ARGUMENT", "There is no statement.")
        return CallOrder(
            sql=request.sql,
            db=db,
            settings=self._settings,
            is_exit_wanted=request.session.exit_on_submit,
        )

    async def _run(self, order: CallOrder, context: Any, session: Session) -> None:
        if self._is_ending:
            raise CallFailed("UNAVAILABLE", "The service is ending.")
        self._begin()
        process, session.process = session.process, None
        if process is not None:
            process.send(order)
        starting = asyncio.ensure_future(_already(process) if process else Call.start(order))
        try:
            call = await asyncio.shield(starting)
            self._calls.add(call)
            if self._is_ending:
                call.interrupt()
            async for response in call.responses():
                await context.write(response)
        except OSError as e:
            what = f"The service cannot start a process for the statements: {e.strerror}."
            raise CallFailed("RESOURCE_EXHAUSTED", f"{what} Try again later.") from e
        finally:
            # Also where the client has gone, which cancels us: its statements end first.
            await _to_the_end(self._end_call(starting, session))

    async def _end_call(self, starting: "asyncio.Future[Call]", session: Session) -> None:
        """Leave the process to the next call of its session, or end it."""
        try:
            with suppress(OSError):  # It did not start, as `_run` says.
                call = await starting
                try:
                    if call.is_done:
                        session.state = ""
                    if call.state and not self._is_ending:
                        session.process = call
                    else:
                        await call.end()
                finally:
                    self._calls.discard(call)
        finally:
            self._finish()

    def _end_process(self, call: Call) -> None:
        """End a process that waits for a call."""
        self._begin()
        ending = asyncio.ensure_future(call.end())
        # The loop itself keeps no task.
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        ending.add_done_callback(lambda _: self._finish())

    def _begin(self) -> None:
        self._num_running += 1
        self._none_runs.clear()

    def _finish(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._none_runs.set()


async def _already(call: Call) -> Call:
    return call


class _Intruders:
    """Counts calls without the token, of which anybody can make as many as they like."""

    def __init__(self) -> None:
        self._num_calls, self._last_peer = 0, ""
        """Since the last line."""
        self._next_line = 0.0

    def count(self, peer: str) -> None:
        """Count a call, and write a line if the last one is long ago."""
        self._num_calls, self._last_peer = self._num_calls + 1, peer
        if time.monotonic() >= self._next_line:
            self.complain()

    def complain(self) -> None:
        """Write a line about the calls since the last line, if there are any."""
        if self._num_calls:
            calls = f"{self._num_calls} call{'s' if self._num_calls > 1 else ''}"
            log.warning("refused %s without the token, the last of %s", calls, self._last_peer)
        self._num_calls = 0
        self._next_line = time.monotonic() + COMPLAINT_SECONDS


async def _to_the_end(work: Any) -> None:
    """Wait for some work even if this task is cancelled meanwhile."""
    done = asyncio.ensure_future(work)
    while not done.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(done)
    done.result()


def _shortened(text: str) -> str:
    """As much of a text as fits, with what is not ASCII percent-encoded, into a header."""
    if len(quote(text)) <= LONGEST_TEXT:
        return text
    while len(quote(text)) > LONGEST_TEXT - 3:
        text = text[: len(text) * 9 // 10]
    return f"{text}..."
