"""The server itself: in a thread of a test, or as a program beside it."""

import argparse
import asyncio
import signal
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.kube.apiserver.admission import MASTERS, Admission, User
from tests.kube.apiserver.http import Api, Faults, Seen
from tests.kube.apiserver.store import Store

ADMIN_TOKEN = "admin-token"
START_SECONDS = 120.0


class ApiServer:
    """An API server in a thread; `with` starts and stops it, and the port stays its own."""

    def __init__(
        self,
        *,
        has_mpijobs: bool = True,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        store = Store()
        store.create("namespaces", "", {"metadata": {"name": "default"}}, is_dry_run=False)
        self._admission = Admission(store, has_mpijobs, {ADMIN_TOKEN: User("admin", (MASTERS,))})
        self.store = store
        """For changes that nobody asks for over HTTP; through `do` while the server runs."""
        self._api = Api(store, self._admission)
        self._host, self._port, self._tls = host, 0, tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    @property
    def faults(self) -> Faults:
        return self._api.faults

    @property
    def seen(self) -> list[Seen]:
        return self._api.seen

    @property
    def tokens(self) -> dict[str, User]:
        """Who may come; a token that is taken out has expired."""
        return self._admission.tokens

    @property
    def log_files(self) -> dict[tuple[str, str], Path]:
        return self._api.log_files

    def set_bookmark_seconds(self, seconds: float) -> None:
        self._api.bookmark_seconds = seconds

    @property
    def kubernetes_version(self) -> str:
        return self._api.kubernetes_version

    def set_kubernetes_version(self, version: str) -> None:
        """Claim to be another one, as `1.24`; a vendor's has a `+` behind it."""
        self._api.kubernetes_version = version

    def break_streams(self) -> None:
        self.do(self._api.break_streams)

    def compact(self) -> None:
        """Forget all history: versions before now are too old."""
        self.do(self.store.compact)

    def set_status(self, resource: str, namespace: str, name: str, status: dict) -> None:
        """Say what a kubelet would."""

        def change() -> None:
            known = self.store.get(resource, namespace, name)
            self.store.update(resource, {**known, "status": status}, is_dry_run=False)

        self.do(change)

    def __enter__(self) -> "ApiServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, port: int = 0) -> None:
        """Listen, where it listened before if it did."""
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started, port)), name="apiserver", daemon=True
        )
        self._thread.start()
        assert started.wait(START_SECONDS), "the API server did not start"

    def stop(self) -> None:
        """Break all connections and listen no more; the objects are kept, their history is not."""
        if self._thread is not None and self._thread.is_alive():
            self.do(self._stopping.set)
            self._thread.join()
        self.store.compact()

    async def _run(self, started: threading.Event, port: int) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        # A handler whose client hung up ends at once.
        runner = web.AppRunner(
            self._api.application(), handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        site = web.TCPSite(
            runner, self._host, self._port or port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]
        started.set()
        await self._stopping.wait()
        self._api.break_streams()
        await runner.cleanup()

    def do(self, action: Callable[[], Any]) -> Any:
        """Do something in the server's thread, or here where it is stopped."""
        if self._thread is None or not self._thread.is_alive():
            return action()
        returned: Future[Any] = Future()

        def run() -> None:
            try:
                returned.set_result(action())
            except Exception as e:  # Raised again where the caller waits.
                returned.set_exception(e)

        self._loop.call_soon_threadsafe(run)
        return returned.result(START_SECONDS)


def main() -> None:
    """`python -m tests.kube.apiserver.server`: serve until SIGTERM; prints its URL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    server = ApiServer(host=args.host)
    server.start(args.port)
    print(server.url, flush=True)  # noqa: T201 - whoever started it reads it
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
