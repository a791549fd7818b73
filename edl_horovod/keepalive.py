"""TCP connections whose other host may vanish without a word, as when its link is cut.

The kernel answers for a process that is busy, stopped or swapped out, so what is noticed here is a
host that is gone, and not a rank that is slow.
"""

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

__all__ = ["VANISHED_SECONDS", "notice_vanished_host", "vanished_hosts_noticed"]

VANISHED_SECONDS = 2.0
"""Silence of a host's kernel after which a connection to it is broken, at most a probe later."""
PROBE_SECONDS = 1
LOOK_SECONDS = 0.25


class _Socket(Protocol):
    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def notice_vanished_host(connection: _Socket) -> None:
    """Break the connection soon after its other host has vanished, whether or not data wait.

    Args:
        connection: A TCP socket, connected or about to be.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    # Counts for probes too, and for data on their way, which no probe watches.
    milliseconds = round(VANISHED_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


@contextlib.contextmanager
def vanished_hosts_noticed(
    is_in_vain: Callable[[], bool] = lambda: False, *, patience_seconds: float = math.inf
) -> Iterator[None]:
    """Let what a library connects in the block notice vanished hosts, where it offers no option.

    Gloo waits for data, and Horovod for an HTTP answer, on sockets that nobody else can reach. The
    first would fail by its time-out only, the second never. Nor does Gloo hear of a member that
    died before it connected.

    Args:
        is_in_vain: Whether those that the library waits for will not all come; it then listens for
            them no longer, and fails.
        patience_seconds: After so long without a new connection it is known, too.
    """
    before = frozenset(_sockets().values())
    is_done = threading.Event()

    def look() -> None:
        seen, came_at = before, time.monotonic()
        while not is_done.wait(LOOK_SECONDS):
            _do_to_all_but(before, notice_vanished_host)
            there = frozenset(_sockets().values())
            if there - seen:  # One that goes is no progress: another member gave up.
                seen, came_at = seen | there, time.monotonic()
            if is_in_vain() or time.monotonic() - came_at > patience_seconds:
                _do_to_all_but(before, _stop_listening)

    thread = threading.Thread(target=look, name="keepalive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        _do_to_all_but(before, notice_vanished_host)


def _sockets() -> dict[int, str]:
    """Descriptor and identity of each socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # Closed meanwhile.
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _do_to_all_but(before: frozenset[str], act: Callable[[socket.socket], None]) -> None:
    """Do something to each TCP socket that is new."""
    for descriptor, identity in _sockets().items():
        if identity not in before:
            with contextlib.suppress(OSError):  # Closed meanwhile.
                borrowed = socket.socket(fileno=descriptor)
                try:
                    is_ip = borrowed.family in (socket.AF_INET, socket.AF_INET6)
                    if is_ip and borrowed.type == socket.SOCK_STREAM:
                        act(borrowed)
                finally:
                    borrowed.detach()


def _stop_listening(borrowed: socket.socket) -> None:
    if borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        borrowed.shutdown(socket.SHUT_RDWR)
