"""Detects that the other host of a TCP connection has vanished, for instance with a cut link.

The kernel answers for a process that is busy, stopped or swapped out. So this finds hosts that are
gone, and not ranks that are slow.
"""

import socket
from typing import Protocol

__all__ = ["VANISHED_SECONDS", "notice_vanished_host"]

VANISHED_SECONDS = 2.0
"""Silence of a host's kernel after which a connection to it is broken, at most a probe later."""
PROBE_SECONDS = 1


class _Socket(Protocol):
    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def notice_vanished_host(connection: _Socket) -> None:
    """Break the connection soon after its other host has vanished, whether or not data wait."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    # Counts for probes too, and for data on their way, which no probe watches.
    milliseconds = round(VANISHED_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
