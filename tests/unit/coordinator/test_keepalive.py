"""Which sockets are told to notice a vanished host."""

import contextlib
import socket

import pytest

from edl_horovod.coordinator.keepalive import VANISHED_SECONDS, notice_vanished_host


@pytest.fixture
def connect():
    """Make connections over loopback; all are closed at the end."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def make():
            client = stack.enter_context(socket.create_connection(server.getsockname()))
            stack.enter_context(server.accept()[0])
            return client

        yield make


def notices(connection):
    milliseconds = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    is_probed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    return is_probed and milliseconds == VANISHED_SECONDS * 1000


def test_a_connection_is_told(connect):
    connection = connect()
    assert not notices(connection)
    notice_vanished_host(connection)
    assert notices(connection)
