"""Ports of the loopback interface that nothing listens on."""

import contextlib
import socket


def free_port() -> int:
    """A free TCP port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different free TCP ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listening in sockets:
            listening.bind(("127.0.0.1", 0))
        return [listening.getsockname()[1] for listening in sockets]
