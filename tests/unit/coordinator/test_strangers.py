"""Who has to go when too many connections have proven nothing."""

import resource

import pytest

from edl_horovod.coordinator import strangers
from edl_horovod.coordinator.strangers import Strangers


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


def test_up_to_the_limit_nobody_goes():
    strangers = Strangers(3)
    connections = [Connection("a") for _ in range(3)]
    for connection in connections:
        strangers.enter(connection)
    assert not any(c.is_aborted for c in connections)


def test_above_it_the_oldest_goes():
    strangers = Strangers(2)
    connections = [Connection("a") for _ in range(4)]
    for connection in connections:
        strangers.enter(connection)
    assert [c.is_aborted for c in connections] == [True, True, False, False]
    assert len(strangers) == 2


def test_who_opens_many_pushes_out_only_his_own():
    strangers = Strangers(10)
    member = Connection("member")
    strangers.enter(member)
    for _ in range(1000):
        strangers.enter(Connection("intruder"))
    assert not member.is_aborted
    assert len(strangers) == 10


def test_who_has_proven_himself_no_longer_counts():
    strangers = Strangers(1)
    member = Connection("a")
    strangers.enter(member)
    strangers.leave(member)
    strangers.leave(member)
    strangers.enter(Connection("a"))
    assert not member.is_aborted
    assert len(strangers) == 1


def test_a_connection_that_is_gone_already_has_no_address():
    strangers = Strangers(1)
    strangers.enter(Connection(None))
    assert len(strangers) == 1


@pytest.mark.parametrize(
    ("open_files", "most"),
    [(1024, 128), (8192, 1000), (resource.RLIM_INFINITY, 1000)],
)
def test_there_are_fewer_where_few_files_may_be_open(monkeypatch, open_files, most):
    monkeypatch.setattr(strangers.resource, "getrlimit", lambda _: (open_files, open_files))
    assert strangers.at_most(1000) == most
