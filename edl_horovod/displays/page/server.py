"""The page of one job, served over HTTP; only this module imports Starlette and uvicorn."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Self

from edl_horovod.displays.page import address
from edl_horovod.displays.page.metrics import CONTENT_TYPE_LATEST, exposition
from edl_horovod.displays.page.rendering import PageTemplate, shipped
from edl_horovod.displays.page.snapshot import UNAVAILABLE, JobSnapshot, Source
from edl_horovod.displays.text import as_json
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.files import json_text

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as e:
    raise MissingDependency(
        f"The dashboard needs a package that is not installed: {e}. To install it where this "
        f"command runs, {how_to_install('dashboard')}"
    ) from e


MAX_CONNECTIONS = 64
"""Concurrent connections; as many more wait until they are accepted."""
REQUEST_SECONDS = 10.0
"""Time limit for receiving a whole request, and for sending its answer."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_MISDIRECTED = 421
"""HTTP status of a request for a foreign host name."""
LEAST_SECONDS = 1.0
"""Minimum time between the starts of two snapshots, for any number of readers."""
PATIENCE_SECONDS = 2.0
"""How long a reader waits for a new snapshot before it gets the previous one."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Dashboard:
    """A page that listens for requests, which `serve` answers; close it, or use it in a `with`."""

    def __init__(self, source: Source, *, host: str, port: int) -> None:
        """Listen on an address; port 0 takes a free port.

        Raises:
            ConfigError: The address is not available.
        """
        self._source, self._host = source, host
        self._socket: socket.socket = address.listen(host, port)
        self.url = address.url(host, self._socket.getsockname()[1])
        """The URL to open in a browser."""

    @property
    def is_public(self) -> bool:
        """Whether other machines may reach the page, which asks for no password."""
        return self._host not in _LOOPBACK

    def serve(self) -> None:
        """Serve the page until SIGINT or SIGTERM, which then has its usual effect."""
        config = uvicorn.Config(
            application(self._source, host=self._host),
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS + 1,
            backlog=MAX_CONNECTIONS,
            # A request that waits for an API server is answered within this time.
            timeout_graceful_shutdown=round(PATIENCE_SECONDS) + 1,
        )
        uvicorn.Server(config).run(sockets=[self._socket])

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def application(source: Source, *, host: str) -> "_Guard":
    """The application: the page, its style sheet, `status.json` and `metrics`, for GET alone.

    `host` is the name or address that the server listens on, as the user wrote it.
    """
    latest, template = LatestSnapshot(source.snapshot), PageTemplate()
    style_sheet = shipped("style.css")

    async def page(request: Request) -> Response:
        snapshot = await latest.get()
        html = template.render(source.name, snapshot, now=time.time())
        return Response(html, snapshot.http_status, media_type="text/html")

    async def status(request: Request) -> Response:
        snapshot = await latest.get()
        state = {} if snapshot.state is None else as_json(snapshot.state, snapshot.details)
        content = {"error": snapshot.problem} if snapshot.problem else state
        text = json_text.dumps(content, indent=2) + "\n"
        return Response(text, snapshot.http_status, media_type="application/json")

    async def metrics(request: Request) -> Response:
        content = exposition(source.name, await latest.get())
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    async def css(request: Request) -> Response:
        return Response(style_sheet, media_type="text/css")

    routes = [Route("/", page), Route("/status.json", status), Route("/style.css", css)]
    routes.append(Route("/metrics", metrics))
    return _Guard(Starlette(routes=routes), host)


class LatestSnapshot:
    """Takes snapshots on demand, one at a time for any number of readers."""

    def __init__(self, take: Callable[[], JobSnapshot]) -> None:
        """Take no snapshot yet; `take` is called in a thread, one call at a time."""
        self._take = take
        self._running: Future[JobSnapshot] | None = None
        self._begun = 0.0
        self._last = JobSnapshot(time=time.time())

    async def get(self) -> JobSnapshot:
        """The newest snapshot, or the previous one with a notice if a new one takes too long."""
        running = self._running
        is_due = time.monotonic() - self._begun >= LEAST_SECONDS
        if running is None or (running.done() and is_due):
            running = self._running = _in_thread(self._take)
            self._begun = time.monotonic()
        waited = asyncio.wrap_future(running)
        await asyncio.wait([waited], timeout=PATIENCE_SECONDS)
        if waited.done():
            self._last = waited.result()
            return self._last
        seconds = time.monotonic() - self._begun
        problem = f"The job has not answered for {seconds:.0f} s; this page waits for it."
        return replace(self._last, problem=problem, http_status=UNAVAILABLE)


def _in_thread(take: Callable[[], JobSnapshot]) -> "Future[JobSnapshot]":
    """Take a snapshot in a daemon thread, which, unlike a pool's, lets the process end."""
    future: Future[JobSnapshot] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(take())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="snapshot", daemon=True).start()
    return future


class _Connection(H11Protocol):
    """A connection that is closed when it keeps others waiting.

    uvicorn itself waits for the first request without a limit, and once there are too many
    connections it refuses the next request, no matter who sends it.
    """

    _since = 0.0
    """When the wait for a request, or the answer to it, started."""
    _end_later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As in uvicorn.
        super().connection_made(transport)
        self._begin()
        if len(self.connections) > MAX_CONNECTIONS:
            # Close the connection that has been idle longest; a browser would have asked by now.
            others = [c for c in self.connections if isinstance(c, _Connection) and c is not self]
            idle = [other for other in others if other.is_idle]
            if idle:
                min(idle, key=lambda other: other._since).end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._end_later is not None:
            self._end_later.cancel()

    def data_received(self, data: bytes) -> None:
        was_idle = self.is_idle
        super().data_received(data)
        if was_idle and not self.is_idle:
            self._begin()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._begin()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _begin(self) -> None:
        if self._end_later is not None:
            self._end_later.cancel()
        self._since = self.loop.time()
        self._end_later = self.loop.call_later(REQUEST_SECONDS, self.end)


class _Guard:
    """Refuses requests for a foreign host name, and adds the security headers to each answer."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._app
        if not address.is_name_of_ours(Headers(scope=scope).get("host", ""), self._host):
            app = PlainTextResponse("This is not the host that you asked for.\n", _MISDIRECTED)
        await app(scope, receive, send_guarded)
