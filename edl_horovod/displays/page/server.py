"""The page of one job as HTML with curves in SVG, served over HTTP.

All text is escaped, because it may contain anything. Only this module imports Starlette, uvicorn
and Jinja2.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import resources
from typing import Self

from edl_horovod.displays.page import address
from edl_horovod.displays.page.snapshot import UNAVAILABLE, JobSnapshot, Point, Source
from edl_horovod.displays.text import (
    JobTable,
    account_tables,
    ago,
    as_json,
    job_facts,
    job_table,
)
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.files import json_text
from edl_horovod.job.state import JobState, TargetDetails

try:
    import jinja2
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

REFRESH_SECONDS = 5
WIDTH, HEIGHT = 600, 120
"""Size of a chart's area."""


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
    """The application: the page, its style sheet and `status.json`, for GET requests only.

    `host` is the name or address that the server listens on, as the user wrote it.
    """
    latest, template = LatestSnapshot(source.snapshot), PageTemplate()
    style_sheet = _shipped("style.css")

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

    async def css(request: Request) -> Response:
        return Response(style_sheet, media_type="text/css")

    routes = [Route("/", page), Route("/status.json", status), Route("/style.css", css)]
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


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One curve."""

    title: str
    line: str
    """Points of an SVG polyline in an area of `WIDTH` times `HEIGHT`."""
    top: str
    """Label of the upper edge; the other three are labels of the other edges."""
    bottom: str
    left: str
    right: str


class PageTemplate:
    """Renders pages from a template that is read once."""

    def __init__(self) -> None:
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._template = environment.from_string(_shipped("page.html"))

    def render(self, name: str, snapshot: JobSnapshot, *, now: float) -> bytes:
        """Render the page in UTF-8; `now` is in seconds since the epoch."""
        state, details = snapshot.state, snapshot.details
        facts = {} if state is None else job_facts(state, details, now=now)
        text = self._template.render(
            name=name,
            snapshot=snapshot,
            state="unknown" if state is None else (details or state).state,
            facts={key: value for key, value in facts.items() if value},
            charts=_charts(snapshot),
            field=(WIDTH, HEIGHT),
            tables=_tables(state, details, now=now),
            waits=() if details is None else details.other_waits,
            notable=[(_clock(when), words) for when, words in reversed(snapshot.notable)],
            as_of=_clock(snapshot.time),
            refresh_seconds=REFRESH_SECONDS,
        )
        # JSON can contain lone surrogates, which UTF-8 cannot encode.
        return text.encode(errors="backslashreplace")


def _tables(state: JobState | None, details: TargetDetails | None, *, now: float) -> list[JobTable]:
    if state is None:
        return []
    workers, (causes, _) = job_table(state, details, now=now), account_tables(state.account)
    return [table for table in (workers, causes) if table is not None]


def draw(
    title: str,
    points: Sequence[Point],
    *,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str] = lambda y: f"{y:.4g}",
    y_least: float | None = None,
) -> Chart | None:
    """Scale a curve to the area; None if the points do not make a curve yet.

    Args:
        title: Title of the chart.
        points: Finite numbers; a curve needs at least two with different x.
        x_text: Formats a number of the x axis.
        y_text: Formats a number of the y axis.
        y_least: Value of the lower edge; None takes the least y.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right = min(xs, default=0.0), max(xs, default=0.0)
    if left == right:
        return None
    bottom, top = min(ys) if y_least is None else y_least, max(ys)
    line = " ".join(
        f"{_share(x, left, right) * WIDTH:.1f},{(1 - _share(y, bottom, top)) * HEIGHT:.1f}"
        for x, y in points
    )
    edges = {"left": x_text(left), "right": x_text(right)}
    return Chart(title=title, line=line, top=y_text(top), bottom=y_text(bottom), **edges)


def stairs(points: Sequence[Point]) -> tuple[Point, ...]:
    """The corners of a step curve, which keeps each value until the next point."""
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return tuple(corners)


def _shipped(name: str) -> str:
    return (resources.files("edl_horovod.displays.page") / name).read_text(encoding="utf-8")


def _charts(snapshot: JobSnapshot) -> list[Chart]:
    began = snapshot.ring[0][0] if snapshot.ring else 0.0
    # The size has not changed since the last point, so the line extends until now, or to the end.
    until = snapshot.time if snapshot.ended is None else snapshot.ended
    last = [(max(until, time), size) for time, size in snapshot.ring[-1:]]
    ring = stairs([*snapshot.ring, *last])
    loss = draw("loss over steps", snapshot.loss, x_text=lambda x: f"step {x:,.0f}")
    ranks = draw("ranks in the ring over time", ring, x_text=lambda x: ago(began, x), y_least=0.0)
    return [chart for chart in (loss, ranks) if chart is not None]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _share(value: float, least: float, most: float) -> float:
    """Position of a value between two others, from 0 to 1; 0.5 if these are equal."""
    # Halves, because the difference of two large numbers may overflow.
    span = most / 2 - least / 2
    return (value / 2 - least / 2) / span if span > 0 else 0.5
