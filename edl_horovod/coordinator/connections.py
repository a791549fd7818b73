"""Connections to the coordinator: a limit for unauthenticated ones, and hosts that vanish."""

import asyncio
import resource
import socket
from collections import Counter
from typing import Protocol

__all__ = ["VANISHED_SECONDS", "UnauthenticatedConnections", "at_most", "notice_vanished_host"]

VANISHED_SECONDS = 2.0
"""Silence of a host's kernel after which a connection to it is broken, at most a probe later."""
PROBE_SECONDS = 1


def at_most(limit: int) -> int:
    """Lower a limit of connections to an eighth of the files that this process may open.

    `asyncio` accepts a whole backlog before it tells anybody of a connection, and closes what was
    aborted a few rounds later: the rest is room for those, and for members.
    """
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if open_files == resource.RLIM_INFINITY else min(limit, open_files // 8)


class UnauthenticatedConnections:
    """The unproven connections of one server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._addresses: dict[asyncio.StreamWriter, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, writer: asyncio.StreamWriter) -> None:
        """Count a new connection. If it is one too many, abort one.

        It is the oldest one of the address that has most of them: a member proves itself within a
        round trip, and an address that opens thousands displaces only its own.
        """
        peer = writer.get_extra_info("peername")
        self._addresses[writer] = str(peer[0]) if peer else ""
        if len(self) > self._limit:
            ((busiest, _),) = Counter(self._addresses.values()).most_common(1)
            oldest = next(w for w, address in self._addresses.items() if address == busiest)
            self.leave(oldest)
            oldest.transport.abort()

    def leave(self, writer: asyncio.StreamWriter) -> None:
        """Stop counting a connection that has proven itself or is gone."""
        self._addresses.pop(writer, None)


class _Socket(Protocol):
    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def notice_vanished_host(connection: _Socket) -> None:
    """Break the connection soon after its other host has vanished, whether or not data wait.

    The kernel answers for a process that is busy, stopped or swapped out, so this finds hosts that
    are gone, for instance behind a cut link, and not ranks that are slow.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    # Counts for probes too, and for data on their way, which no probe watches.
    milliseconds = round(VANISHED_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
