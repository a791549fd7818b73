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
from edl_horovod.sql.service.access import Access, ListenAddress
from edl_horovod.sql.service.frames import CallRequest, ServiceSettings
from edl_horovod.sql.service.sessions import (
    CallFailed,
    Session,
    SessionProcess,
    Sessions,
    TooManyCalls,
)

try:
    import grpc
except ImportError as e:
    raise MissingDependency(
        "The SQL service needs the package grpcio, which is not installed.",
        hint=f"To get it, {how_to_install('sqlflow')}.",
    ) from e

__all__ = ["serve"]

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
        tls = (
            ", and that the files of --certificate and --key are valid"
            if listen.certificate
            else ""
        )
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
        code, text = "", ""
        try:
            call = self._call_request(request)
            # Without a user every connection is a session.
            name = f"user {request.session.user_id}"
            if not request.session.user_id:
                name = f"peer {context.peer()}"
            async with self._sessions.turn((name, call.db)) as session:
                await self._run(call, context, session)
        except CallFailed as e:
            code, text = e.code, e.text
        except TooManyCalls as e:
            code, text = "RESOURCE_EXHAUSTED", str(e)
        if code == "UNAUTHENTICATED":
            self._refused_calls.count(context.peer())
        elif code:
            log.info("a call from %s failed: %s %s", context.peer(), code, text)
        if code:
            await context.abort(grpc.StatusCode[code], _shortened(text))

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
        self._begin()
        process, session.process = session.process, None
        if process is not None:
            process.send(request)
        starting = asyncio.ensure_future(
            _started(process) if process else SessionProcess.start(request)
        )
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
            self._finish()

    def _end_process(self, process: SessionProcess) -> None:
        """End a process that waits for a call."""
        self._begin()
        ending = asyncio.ensure_future(process.end())
        # The event loop keeps no strong reference to a task.
        self._end_tasks.add(ending)
        ending.add_done_callback(self._end_tasks.discard)
        ending.add_done_callback(lambda _: self._finish())

    def _begin(self) -> None:
        self._num_running += 1
        self._is_idle.clear()

    def _finish(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._is_idle.set()


async def _started(process: SessionProcess) -> SessionProcess:
    return process


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
