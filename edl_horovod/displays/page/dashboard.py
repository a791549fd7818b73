"""The page of one job at an address of this machine."""

import socket
from typing import Self

from edl_horovod.displays.page import address, server
from edl_horovod.displays.page.sources import Source

__all__ = ["Dashboard"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Dashboard:
    """A page that listens; `serve` answers. Close it, or use it in a `with`."""

    def __init__(self, source: Source, *, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            ConfigError: One cannot listen there.
        """
        self._source, self._host = source, host
        self._socket: socket.socket = address.listen(host, port)
        self.url = address.url(host, self._socket.getsockname()[1])
        """What to type into a browser."""

    @property
    def is_public(self) -> bool:
        """Whether other machines may reach the page, which asks for no password."""
        return self._host not in _LOOPBACK

    def serve(self) -> None:
        """Serve the page until SIGINT or SIGTERM, which then has its usual effect."""
        server.serve(self._source, self._socket, host=self._host)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
