"""Which sockets are told to notice a vanished host."""

import contextlib
import socket
import threading
import time

import pytest

from edl_horovod import keepalive
from edl_horovod.keepalive import VANISHED_SECONDS, notice_vanished_host, vanished_hosts_noticed


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


def test_what_is_connected_in_the_block_is_told_and_nothing_else(connect):
    before = connect()
    with vanished_hosts_noticed():
        inside = connect()
    after = connect()
    assert [notices(c) for c in (before, inside, after)] == [False, True, False]
    assert inside.fileno() >= 0


def test_what_waits_in_the_block_is_told_while_it_waits(connect, monkeypatch):
    monkeypatch.setattr(keepalive, "LOOK_SECONDS", 0.01)
    with vanished_hosts_noticed():
        connection = connect()
        for _ in range(500):
            if notices(connection):
                break
            connection.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                connection.recv(1)
        assert notices(connection)


def test_other_sockets_do_not_disturb_it():
    with (
        vanished_hosts_noticed(),
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        assert local.fileno() != datagrams.fileno()


def test_what_the_block_waits_for_in_vain_is_waited_for_no_longer(connect, monkeypatch):
    monkeypatch.setattr(keepalive, "LOOK_SECONDS", 0.01)
    is_in_vain = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as before:
        with (
            vanished_hosts_noticed(is_in_vain.is_set),
            socket.create_server(("127.0.0.1", 0)) as it,
        ):
            connection = connect()
            it.settimeout(0.2)
            with pytest.raises(TimeoutError):
                it.accept()
            is_in_vain.set()
            it.settimeout(5.0)
            with pytest.raises(OSError, match="Invalid argument"):
                it.accept()
        connection.sendall(b"connections go on")
        socket.create_connection(before.getsockname()).close()
        before.accept()[0].close()


def test_nobody_listens_for_longer_than_nothing_connects(monkeypatch):
    monkeypatch.setattr(keepalive, "LOOK_SECONDS", 0.01)
    patience = 1.0
    began = time.monotonic()
    with (
        vanished_hosts_noticed(patience_seconds=patience),
        socket.create_server(("127.0.0.1", 0)) as it,
        contextlib.ExitStack() as connections,
    ):
        it.settimeout(5.0)
        for _ in range(3):  # Each connection starts the time anew.
            time.sleep(patience / 2)
            connections.enter_context(socket.create_connection(it.getsockname()))
            connections.enter_context(it.accept()[0])
        last_at = time.monotonic()
        # One that goes starts nothing anew.
        goes = threading.Timer(patience * 0.8, connections.close)
        goes.start()
        with pytest.raises(OSError, match="Invalid argument"):
            it.accept()
        assert time.monotonic() - last_at < 1.5 * patience
        goes.join()
    assert time.monotonic() - began > 2.4 * patience


def test_a_block_that_fails_is_told_too(connect):
    def fail():
        with vanished_hosts_noticed():
            made.append(connect())
            raise OSError("no ring")

    made = []
    with pytest.raises(OSError, match="no ring"):
        fail()
    assert notices(made[0])
