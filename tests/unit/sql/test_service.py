"""Parts of the SQL service: cells as messages, codes of errors, who may use it, order."""

import asyncio
import dataclasses
import datetime
import decimal

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import (
    BoolValue,
    BytesValue,
    DoubleValue,
    Int64Value,
    StringValue,
    UInt64Value,
)

from edl_horovod.errors import ConfigError, DataError, Interrupted, JobFailed
from edl_horovod.proto.sqlflow_pb2 import Row
from edl_horovod.sql.service import server
from edl_horovod.sql.service.access import Access, ListenAddress
from edl_horovod.sql.service.frames import status_code
from edl_horovod.sql.service.process import responses_of
from edl_horovod.sql.service.server import CallFailed, Sessions
from edl_horovod.sql.statements import Result

NOON = datetime.datetime(2026, 2, 3, 12, 34, 56, 789_000)
SECONDS = 1_770_122_096
EAST = datetime.timezone(datetime.timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, Row.Null()),
        (True, BoolValue(value=True)),
        (-(2**63), Int64Value(value=-(2**63))),
        (2**64 - 1, UInt64Value(value=2**64 - 1)),
        (2**64, StringValue(value=str(2**64))),
        (0.5, DoubleValue(value=0.5)),
        (decimal.Decimal("1.10"), StringValue(value="1.10")),
        ("ü", StringValue(value="ü")),
        (memoryview(b"\x00"), BytesValue(value=b"\x00")),
        (NOON, Timestamp(seconds=SECONDS, nanos=789_000_000)),
        (NOON.replace(tzinfo=EAST), Timestamp(seconds=SECONDS - 7_200, nanos=789_000_000)),
        (datetime.date(1969, 12, 31), Timestamp(seconds=-86_400)),
        (datetime.time(1, 2), StringValue(value="01:02:00")),
    ],
)
def test_a_cell_is_the_message_of_its_type(value, wanted):
    _, row = responses_of(Result(columns=("a",), rows=((value,),)))
    cell = type(wanted)()
    assert row.row.data[0].Unpack(cell)
    assert cell == wanted


def test_rows_that_were_left_out_are_told():
    *_, last = responses_of(Result(columns=("a",), rows=((1,),), has_more_rows=True))
    assert "LIMIT" in last.message.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError, "INVALID_ARGUMENT"),
        (DataError, "FAILED_PRECONDITION"),
        (Interrupted, "CANCELLED"),
        (JobFailed, "INTERNAL"),
    ],
)
def test_an_error_has_the_code_of_its_kind(error, code):
    assert status_code(error("wrong")) == code


def test_other_machines_need_tls_unless_told_and_this_one_does_not():
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        assert ListenAddress(host=host).host == host
    for host in ("0.0.0.0", "::", "10.0.0.1", "db.example.org", ""):
        with pytest.raises(ConfigError, match="without-tls"):
            ListenAddress(host=host)
        assert ListenAddress(host=host, allows_plaintext=True)
        assert ListenAddress(host=host, certificate=b"a", key=b"b")


def test_secrets_are_not_in_representations():
    access = Access(token="hidden", db="hidden", databases=("hidden",))
    assert "hidden" not in repr((access, ListenAddress(certificate=b"a", key=b"hidden")))


async def test_calls_of_a_session_keep_their_order():
    sessions, began = Sessions(1, end=print), []

    async def call(number):
        async with sessions.turn("one"):
            began.append(number)
            await asyncio.sleep(0)
            assert began[-1] == number

    await asyncio.gather(*(call(number) for number in range(5)))
    assert began == list(range(5))


async def test_a_session_that_has_ended_makes_room():
    sessions = Sessions(1, end=print)
    async with sessions.turn("one"):
        with pytest.raises(CallFailed, match="1 session"):
            async with sessions.turn("two"):
                pass
    async with sessions.turn("two"):
        pass


@dataclasses.dataclass
class Process:
    """Stands for a process that waits for the next call of its session."""

    state: str = "the open transaction"


@pytest.mark.parametrize(("most", "seconds"), [(1, 60), (2, 0)])
async def test_a_session_that_ends_between_its_calls_tells_its_client_once(most, seconds):
    ended = []
    sessions = Sessions(most, end=ended.append, idle_seconds=seconds)
    async with sessions.turn("one") as session:
        session.process = Process()
    await asyncio.sleep(0.01)
    async with sessions.turn("two"):
        assert ended == [Process()]
    with pytest.raises(CallFailed, match="open transaction") as error:
        async with sessions.turn("one"):
            pass
    assert error.value.code == "ABORTED"
    async with sessions.turn("one") as session:
        assert session.process is None


async def test_of_many_sessions_that_ended_only_the_last_are_told(monkeypatch):
    monkeypatch.setattr(server, "MAX_LOST_SESSIONS", 2)
    sessions = Sessions(3, end=print)
    for name in ("one", "two", "three"):
        async with sessions.turn(name) as session:
            session.process = Process()
    sessions.end_idle()
    async with sessions.turn("one") as session:
        assert session.process is None
    for name in ("two", "three"):
        with pytest.raises(CallFailed):
            async with sessions.turn(name):
                pass


async def test_a_session_that_waits_keeps_its_process():
    sessions = Sessions(2, end=print, idle_seconds=60)
    async with sessions.turn("one") as session:
        session.process = Process()
    async with sessions.turn("two"):
        pass
    async with sessions.turn("one") as session:
        assert session.process == Process()
