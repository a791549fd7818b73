"""A web server of a test, on a free port of this machine."""

import abc
import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[str]:
    """Serve by a handler while the block runs; yields the URL, without a slash at its end."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what is posted, answers with a body, and logs nothing."""

    def do_POST(self) -> None:
        """Take the body of a request."""
        self.receive(self.rfile.read(int(self.headers["Content-Length"] or 0)))

    @abc.abstractmethod
    def receive(self, posted: bytes) -> None:
        """Take a body, and answer unless the server is to hang."""

    def answer(self, body: bytes = b"") -> None:
        """Answer that all is well."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""
