"""The pages of jobs, served over HTTP; only this module imports Starlette and uvicorn."""

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic, Self, TypeVar
from urllib.parse import quote

from edl_horovod.displays.page import address, folder, report
from edl_horovod.displays.page.folder import Folder, JobList
from edl_horovod.displays.page.metrics import CONTENT_TYPE_LATEST, RankSeconds, exposition
from edl_horovod.displays.page.rendering import (
    ASSETS,
    View,
    log_view,
    page,
    settings_view,
    shipped,
)
from edl_horovod.displays.page.snapshot import (
    NOT_FOUND,
    PAGE_SECONDS,
    UNAVAILABLE,
    JobSnapshot,
    Source,
)
from edl_horovod.displays.text import as_json
from edl_horovod.errors import (
    ConfigError,
    EdlError,
    MissingDependency,
    ObjectNotFound,
    how_to_install,
)
from edl_horovod.files import json_text

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import (
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import BaseRoute, Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as e:
    raise MissingDependency(
        f"The dashboard needs a package that is not installed: {e}. To install it where this "
        f"command runs, {how_to_install('dashboard')}"
    ) from e


T = TypeVar("T")

MAX_CONNECTIONS = 64
"""Concurrent connections; as many more wait until they are accepted."""
MAX_STREAMS = 32
"""Pages that are followed at a time, so that there are connections for other requests."""
REQUEST_SECONDS = 10.0
"""Time limit for receiving a whole request, and for sending its answer or the next part of it."""
SIGN_SECONDS = 5.0
"""Longest time without a message to a page that is followed, even if nothing has changed."""
BARS_SECONDS = 5.0
"""Time between two pictures of a job's processes, the largest section of a page."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_MISDIRECTED = 421
"""HTTP status of a request for a foreign host name."""
PATIENCE_SECONDS = 2.0
"""How long a reader waits for a new look before it gets the previous one."""
MAX_AGE_SECONDS = 90.0
"""Age from which on the jobs of a list are not up. A list that takes long to read may be the one
that the scrape before has asked for, usually a minute ago."""
TOKEN_VARIABLE = "EDL_DASHBOARD_TOKEN"
"""Environment variable with the token that a reader must present, on loopback as well."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TYPES = {"css": "text/css", "js": "text/javascript"}
_PROGRESS = "edl.progress"
"""Key of an ASGI scope: what tells the connection that its reader has taken a part."""


class Dashboard:
    """A page that listens for requests, which `serve` answers; close it, or use it in a `with`."""

    def __init__(self, shown: Source | Folder, *, host: str, port: int) -> None:
        """Listen on an address; port 0 takes a free port.

        Args:
            shown: One job, or a folder with jobs.
            host: Address to listen on.
            port: Port to listen on.

        Raises:
            ConfigError: The address is not available.
        """
        self._shown, self._host = shown, host
        self._socket: socket.socket = address.listen(host, port)
        generated = secrets.token_urlsafe(24) if self.is_public else ""
        self._token = os.environ.get(TOKEN_VARIABLE) or generated
        """Token that a reader must present; empty if only this machine can reach the page."""
        self._port: int = self._socket.getsockname()[1]
        self.url = address.url(host, self._port)
        """The URL to open in a browser."""
        if self._token:
            self.url += f"?token={quote(self._token)}"

    @property
    def is_public(self) -> bool:
        """Whether other machines may reach the page."""
        return self._host not in _LOOPBACK

    def serve(self) -> None:
        """Serve the page until SIGINT or SIGTERM, which then has its usual effect."""
        pages = Pages(self._shown)
        config = uvicorn.Config(
            _Guard(Starlette(routes=pages.routes()), self._host, self._port, self._token),
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
        # They wait until the server handles them: one that cut its start would leave a warning.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            _Server(config, pages, mask).run(sockets=[self._socket])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(uvicorn.Server):
    """A server that ends the streams first, because it waits for answers that are not complete."""

    def __init__(
        self, config: uvicorn.Config, pages: "Pages", mask: set[signal.Signals | int]
    ) -> None:
        """Take the signals that are blocked while it serves."""
        super().__init__(config)
        self._pages, self._mask = pages, mask

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.ending.set()
        await super().shutdown(sockets)


class Pages:
    """What is answered, to GET alone: the pages, the changes of each, `status.json`, `metrics`."""

    def __init__(self, shown: Source | Folder) -> None:
        self._jobs: dict[str, _Job] = {}
        self._folder = shown if isinstance(shown, Folder) else None
        if isinstance(shown, Folder):
            self._list = Latest(
                shown.snapshot,
                JobList(time.time()),
                functools.partial(_late_list, f"below {shown.name}"),
                seconds=shown.look_seconds,
            )
            self._lists_elsewhere = [
                Latest(
                    functools.partial(shown.elsewhere, kind),
                    JobList(time.time()),
                    functools.partial(_late_list, f"of {kind}"),
                    seconds=folder.FIND_SECONDS,
                    is_often_slow=True,
                )
                for kind in shown.kinds_elsewhere
            ]
        else:
            self._jobs[""] = _Job(shown)
        self._rank_seconds = RankSeconds()
        self._num_streams = 0
        self.ending = asyncio.Event()
        """Ends the streams."""

    def routes(self) -> list[BaseRoute]:
        """The paths; all but those of assets are below each job's own."""
        of_jobs = "/job/{job:path}" if self._folder is not None else ""
        routes = [Route("/assets/{name:path}", _asset)]
        if self._folder is not None:
            routes += [Route("/", self._list_page), Route("/metrics", self._metrics_of_all)]
        return [
            *routes,
            Route(f"{of_jobs}/logs/{{process}}", self._log_page),
            Route(f"{of_jobs}/settings", self._settings_page),
            Route(f"{of_jobs}/status.json", self._status),
            Route(f"{of_jobs}/metrics", self._metrics),
            Route(f"{of_jobs}/", self._job_page),
        ]

    async def _list_page(self, request: Request) -> Response:
        assert self._folder is not None
        shown = self._folder

        async def view() -> View:
            self._close_unread()
            looks = (self._list, *self._lists_elsewhere)
            lists = await asyncio.gather(*(latest.get() for latest in looks))
            return folder.list_view(shown.name, *lists, now=time.time())

        return await self._page(request, view, shown.look_seconds)

    async def _job_page(self, request: Request) -> Response:
        job = await self._job(request)
        links = [*self._up(), ("settings", "settings")]
        return await self._page(request, job.view, job.source.look_seconds, links)

    async def _log_page(self, request: Request) -> Response:
        job = await self._job(request)
        text = await job.log(request.path_params["process"])

        async def view() -> View:
            return await text.get()

        links = [*self._up(), ("job", "../"), ("settings", "../settings")]
        return await self._page(request, view, job.source.look_seconds, links)

    async def _settings_page(self, request: Request) -> Response:
        source = (await self._job(request)).source
        try:
            view = settings_view(source.name, await asyncio.wrap_future(_in_thread(source.config)))
        except EdlError as error:
            raise _refusal(error) from error
        return _html(page(view, links=[*self._up(), ("job", "./")]), 200)

    async def _status(self, request: Request) -> Response:
        snapshot = await (await self._job(request)).latest.get()
        # The account of a large job takes long to write.
        text = await asyncio.wrap_future(_in_thread(lambda: _status_text(snapshot)))
        return Response(text, snapshot.http_status, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        job = await self._job(request)
        content = exposition({job.source.name: await job.latest.get()}, self._rank_seconds)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    async def _metrics_of_all(self, request: Request) -> Response:
        """The metrics of the jobs below a folder; lists of jobs elsewhere tell too little."""
        self._close_unread()
        jobs = await self._list.get()
        is_old = time.time() - jobs.time >= MAX_AGE_SECONDS
        problem = jobs.problem or (jobs.late if is_old else "")
        snapshots = {
            jobs.names[path]: replace(snapshot, problem=snapshot.problem or problem)
            for path, snapshot in jobs.jobs
            if snapshot is not None
        }
        return Response(exposition(snapshots, self._rank_seconds), media_type=CONTENT_TYPE_LATEST)

    async def _page(
        self,
        request: Request,
        view: Callable[[], Awaitable[View]],
        seconds: float,
        links: list[tuple[str, str]] | None = None,
    ) -> Response:
        """The page, or, for the parameter `changes`, the stream of its changes."""
        if "changes" not in request.query_params or request.method != "GET":
            shown = await view()
            return _html(page(shown, stream="?changes", links=links or []), shown.http_status)
        if self._num_streams >= MAX_STREAMS:
            raise HTTPException(UNAVAILABLE, "Too many pages are open.")
        self._num_streams += 1
        return _Stream(self._changes(view, seconds, request.scope[_PROGRESS]), self._end_stream)

    def _end_stream(self) -> None:
        self._num_streams -= 1

    async def _changes(
        self, view: Callable[[], Awaitable[View]], seconds: float, progress: Callable[[], None]
    ) -> AsyncIterator[str]:
        """Messages with the sections that have changed, the first one with all of them."""
        before, sent_at = dict[str, str](), float("-inf")
        while not self.ending.is_set():
            fresh = await view()
            changed = {id: html for id, html in fresh.sections.items() if html != before.get(id)}
            if changed or time.monotonic() - sent_at >= SIGN_SECONDS:
                message = {"title": fresh.title, "sections": changed}
                yield f"data: {json_text.dumps(message)}\n\n"
                before, sent_at = dict(fresh.sections), time.monotonic()
                progress()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), seconds)

    async def _job(self, request: Request) -> "_Job":
        path = request.path_params.get("job", "")
        jobs = self._folder
        if path not in self._jobs and jobs is not None:
            try:
                source = await asyncio.wrap_future(_in_thread(lambda: jobs.source(path)))
            except EdlError as error:
                raise _refusal(error) from error
            if source is not None:
                # Another request may have opened the job since.
                self._jobs.setdefault(path, _Job(source))
        if path not in self._jobs:
            raise HTTPException(NOT_FOUND, "There is no such job.")
        job = self._jobs[path]
        job.asked_at = time.monotonic()
        return job

    def _close_unread(self) -> None:
        """Forget the jobs of a folder whose pages are not open."""
        since = time.monotonic() - PAGE_SECONDS
        self._jobs = {path: job for path, job in self._jobs.items() if job.asked_at >= since}

    def _up(self) -> list[tuple[str, str]]:
        return [("jobs", "/")] if self._folder is not None else []


class _Stream(StreamingResponse):
    """A stream of changes, which tells its end even if nothing of it could be sent."""

    def __init__(self, changes: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(changes, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class _Job:
    """One job for all who look at it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.latest = Latest(
            source.snapshot,
            JobSnapshot(time=time.time()),
            _late_snapshot,
            seconds=source.look_seconds,
        )
        self.asked_at = time.monotonic()
        """When its page was shown last, in seconds of `time.monotonic`."""
        self._view: tuple[JobSnapshot, View] | None = None
        self._bars, self._bars_made = "", float("-inf")
        self._logs: dict[str, Latest[View]] = {}

    async def view(self) -> View:
        """The job's page, made once of each snapshot."""
        self.asked_at = time.monotonic()
        snapshot = await self.latest.get()
        if self._view is None or self._view[0] is not snapshot:
            is_due = time.monotonic() - self._bars_made >= BARS_SECONDS
            bars = "" if is_due else self._bars
            view = report.live_view(self.source.name, snapshot, now=time.time(), bars=bars)
            if is_due:
                self._bars, self._bars_made = view.sections["processes"], time.monotonic()
            self._view = (snapshot, view)
        return self._view[1]

    async def log(self, process: str) -> "Latest[View]":
        """The page of a log."""
        if process not in (await self.latest.get()).logs:
            raise HTTPException(NOT_FOUND, "There is no such log.")
        if process not in self._logs:
            name = self.source.name
            self._logs[process] = Latest(
                lambda: self._read_log(process),
                log_view(name, process, ""),
                lambda view, seconds: view,
                seconds=self.source.look_seconds,
            )
        return self._logs[process]

    def _read_log(self, process: str) -> View:
        try:
            return log_view(self.source.name, process, self.source.log(process))
        except (EdlError, OSError) as error:
            return log_view(self.source.name, process, "", f"The log cannot be read: {error}")


class Latest(Generic[T]):
    """Looks on demand, one look at a time for any number of readers."""

    def __init__(
        self,
        take: Callable[[], T],
        first: T,
        late: Callable[[T, float], T],
        *,
        seconds: float,
        is_often_slow: bool = False,
    ) -> None:
        """Look at nothing yet.

        Args:
            take: Looks; it is called in a thread, one call at a time.
            first: Stands for a look before the first one.
            late: Marks the look before as old, by the seconds for which a newer one is waited for.
            seconds: Minimum time between the starts of two looks, for any number of readers.
            is_often_slow: Whether readers do not wait for a look that has taken long already, or
                that follows one which took long.
        """
        self._take, self._last, self._late, self._seconds = take, first, late, seconds
        self._is_often_slow = is_often_slow
        self._running: Future[T] | None = None
        self._begun, self._took = 0.0, 0.0

    async def get(self) -> T:
        """The newest look, or the previous one, marked as old, if a new one takes too long."""
        running = self._running
        is_due = time.monotonic() - self._begun >= self._seconds
        if running is None or (running.done() and is_due):
            running = self._running = _in_thread(self._look)
            self._begun = time.monotonic()
        patience = self._patience()
        waited = asyncio.wrap_future(running)
        await asyncio.wait([waited], timeout=patience)
        if waited.done():
            return waited.result()
        seconds = time.monotonic() - self._begun
        is_late = patience > 0 or seconds >= PATIENCE_SECONDS
        return self._late(self._last, seconds) if is_late else self._last

    def _look(self) -> T:
        began = time.monotonic()
        try:
            self._last = self._take()
        finally:
            self._took = time.monotonic() - began
        return self._last

    def _patience(self) -> float:
        """How long a reader waits for the look that runs, in seconds."""
        if not self._is_often_slow:
            return PATIENCE_SECONDS
        if self._took >= PATIENCE_SECONDS:
            return 0.0
        return max(0.0, self._begun + PATIENCE_SECONDS - time.monotonic())


def _refusal(error: EdlError) -> HTTPException:
    """The answer where a job cannot be opened."""
    is_missing = isinstance(error, ConfigError | ObjectNotFound)
    return HTTPException(NOT_FOUND if is_missing else UNAVAILABLE, str(error))


def _late_snapshot(snapshot: JobSnapshot, seconds: float) -> JobSnapshot:
    problem = f"The job has not answered for {seconds:.0f} s; this page waits for it."
    return replace(snapshot, problem=problem, http_status=UNAVAILABLE)


def _late_list(which: str, jobs: JobList, seconds: float) -> JobList:
    late = f"Reading the jobs {which} has taken {seconds:.0f} s so far; this page waits for it."
    return replace(jobs, late=late)


def _status_text(snapshot: JobSnapshot) -> str:
    """A job's state as JSON, or the problem that hides it."""
    state = {} if snapshot.state is None else as_json(snapshot.state, snapshot.details)
    content = {"error": snapshot.problem} if snapshot.problem else state
    return json_text.dumps(content, indent=2) + "\n"


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(NOT_FOUND)
    return Response(shipped(name), media_type=_TYPES[name.rpartition(".")[2]])


def _html(content: bytes, status: int) -> Response:
    return Response(content, status, media_type="text/html")


def _in_thread(take: Callable[[], T]) -> "Future[T]":
    """Look in a daemon thread, which, unlike a pool's, lets the process end."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(take())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="look", daemon=True).start()
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

    def handle_events(self) -> None:
        super().handle_events()
        if self.scope is not None:  # The answer begins to be made when this returns.
            self.scope.update({_PROGRESS: self._begin})  # type: ignore[misc]  # A key of ours.

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
    """Refuses who has no token, or a foreign host name, and adds the security headers."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str) -> None:
        """Guard an application; without a token everybody who reaches it may read."""
        self._app, self._host, self._token = app, host, token
        # A browser sends the cookies of a host to all of its ports.
        self._cookie = f"edl-dashboard-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._refusal(Request(scope)) or self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to who may not read, or has yet to be given the cookie."""
        # With a token a name may be any: browsers give the cookie to the name that got it alone.
        name = request.headers.get("host", "")
        if not self._token and not address.is_name_of_ours(name, self._host):
            return PlainTextResponse("This is not the host that you asked for.\n", _MISDIRECTED)
        _, _, bearer = request.headers.get("authorization", "").partition("Bearer ")
        if not self._token or self._is_right(bearer or request.cookies.get(self._cookie, "")):
            return None
        if self._is_right(request.query_params.get("token", "")):
            # The address that people see, keep and pass on does not have the token.
            answer = RedirectResponse(request.url.remove_query_params("token"), 303)
            # Not strict, which would refuse who follows a link to this page from another site.
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        text = (
            "Open the URL that edl dashboard printed: it has the token that this page asks for.\n"
        )
        return PlainTextResponse(text, 401)

    def _is_right(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())
