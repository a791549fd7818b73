"""Which unauthenticated connections are aborted, and which sockets notice a vanished host."""

import contextlib
import resource
import socket

import pytest

from edl_horovod.coordinator import wire
from edl_horovod.coordinator.wire import (
    VANISHED_SECONDS,
    UnauthenticatedConnections,
    notice_vanished_host,
)


class Connection:
    """As much of a StreamWriter as matters here."""

    def __init__(self, address):
        self.transport = self
        self.is_aborted = False
        self._address = address

    def get_extra_info(self, name):
        assert name == "peername"
        return (self._address, 1) if self._address else None

    def abort(self):
        self.is_aborted = True


@pytest.mark.parametrize(("most", "num_aborted"), [(4, 0), (2, 2)])
def test_above_the_limit_the_oldest_go(most, num_aborted):
    unauthenticated = UnauthenticatedConnections(most)
    callers = [Connection("a") for _ in range(4)]
    for connection in callers:
        unauthenticated.enter(connection)
    assert [c.is_aborted for c in callers] == [number < num_aborted for number in range(4)]
    assert len(unauthenticated) == most


def test_who_opens_many_pushes_out_only_his_own():
    unauthenticated = UnauthenticatedConnections(10)
    member = Connection("member")
    unauthenticated.enter(member)
    for _ in range(1000):
        unauthenticated.enter(Connection("intruder"))
    assert not member.is_aborted
    assert len(unauthenticated) == 10


def test_who_has_proven_himself_no_longer_counts():
    unauthenticated = UnauthenticatedConnections(1)
    member = Connection("a")
    unauthenticated.enter(member)
    unauthenticated.leave(member)
    unauthenticated.leave(member)
    unauthenticated.enter(Connection("a"))
    assert not member.is_aborted
    assert len(unauthenticated) == 1


def test_a_connection_that_is_gone_already_has_no_address():
    unauthenticated = UnauthenticatedConnections(1)
    unauthenticated.enter(Connection(None))
    assert len(unauthenticated) == 1


@pytest.mark.parametrize(
    ("open_files", "most"), [(1024, 128), (8192, 1000), (resource.RLIM_INFINITY, 1000)]
)
def test_there_are_fewer_where_few_files_may_be_open(monkeypatch, open_files, most):
    monkeypatch.setattr(wire.resource, "getrlimit", lambda _: (open_files, open_files))
    assert wire.at_most(1000) == most


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
