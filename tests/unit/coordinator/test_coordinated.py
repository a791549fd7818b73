"""A worker's side of the protocol: nothing it has to say is lost, nothing it waits for is endless.

The rings themselves are stand-ins.
"""

import contextlib
import inspect
import socket
import threading
from dataclasses import asdict, replace

import pytest

from edl_horovod.coordinator.wire import Channel, new_nonce
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.job import outcome
from edl_horovod.job.events import EventLog, read
from edl_horovod.job.outcome import Success
from edl_horovod.ring.membership import coordinated
from edl_horovod.ring.membership.base import Dismissed
from edl_horovod.ring.membership.coordinated import (
    EXIT_HUNG,
    CoordinatedMembership,
    CoordinatedTimings,
    CoordinatorAddress,
)
from tests.parallel.places import FormsAtOnce, place_of
from tests.waiting import wait_until, watch

SECRET = b"the job's secret"
LIMIT_SECONDS = 8.0


class Call:
    """One connection, as the coordinator sees it."""

    def __init__(self, connection, *, secret):
        self.connection = connection
        connection.settimeout(LIMIT_SECONDS)
        self._lines = connection.makefile("rb")
        nonce = new_nonce()
        connection.sendall(f"edl {nonce}\n".encode())
        client_nonce = self._lines.readline().decode().split()[1]
        self._channel = Channel(
            secret, server_nonce=nonce, client_nonce=client_nonce, is_server=True
        )
        self.hello = self.hear("hello")

    def hear(self, kind):
        while True:
            message = self._channel.open(self._lines.readline())
            if message["kind"] == kind:
                return message

    def seal(self, kind, **fields):
        return self._channel.seal({"kind": kind, **fields})

    def send(self, kind, **fields):
        self.connection.sendall(self.seal(kind, **fields))

    def ping(self):
        """The worker's answer, which comes after all that it was sent before."""
        self.send("ping")
        return self.hear("pong")

    def ends(self):
        return self._lines.readline() == b""

    def hang_up(self):
        self._lines.close()
        self.connection.close()


class Listener:
    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(LIMIT_SECONDS)
        self.port = self.socket.getsockname()[1]
        self.calls = []

    def accept(self, secret=SECRET):
        self.calls.append(Call(self.socket.accept()[0], secret=secret))
        return self.calls[-1]


@pytest.fixture
def coordinator():
    listener = Listener()
    yield listener
    listener.socket.close()
    for call in listener.calls:
        call.hang_up()


TIMINGS = CoordinatedTimings(
    forming_seconds=1.0, first_seconds=60.0, away_seconds=60.0, retry_seconds=0.01
)


def address_of(coordinator, **worker):
    return CoordinatorAddress(host="127.0.0.1", port=coordinator.port, secret=SECRET, **worker)


@pytest.fixture
def membership(coordinator, request):
    """A test may ask for other timings by a parameter."""
    address = address_of(coordinator, worker_host="localhost", slot=3)
    timings = replace(TIMINGS, **getattr(request, "param", {}))
    membership = CoordinatedMembership(FormsAtOnce(), address, timings)
    yield membership
    membership.close()
    wait_until(lambda: not any(t.name == "membership" for t in threading.enumerate()))


@pytest.fixture
def ends(monkeypatch):
    """The exit codes with which this process would have ended."""
    codes = []
    monkeypatch.setattr(coordinated.os, "_exit", codes.append)
    return codes


class Doing:
    """A call that blocks, in a thread of its own."""

    def __init__(self, function, *args):
        self.result = self.error = None
        self._thread = threading.Thread(target=self._run, args=(function, *args), daemon=True)
        self._thread.start()

    def _run(self, function, *args):
        try:
            self.result = function(*args)
        except Exception as error:
            self.error = error

    def end(self):
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "it hangs"
        return self


def place(generation):
    return asdict(replace(place_of(0, 1, "t", generation, size=1), worker="localhost:3"))


def test_a_warm_worker_gets_its_place(membership, coordinator):
    joining = Doing(membership.join, -1)
    call = coordinator.accept()
    assert (call.hello["is_ready"], call.hello["slot"], call.hello["generation"]) == (True, 3, 0)
    call.send("assign", **place(1))
    assert joining.end().result.generation == 1
    membership.formed(joining.result)
    assert call.hear("formed")["generation"] == 1
    assert not membership.wants_change()
    call.send("change", generation=2)
    wait_until(membership.wants_change)


@pytest.mark.parametrize(("fields", "is_final"), [({"is_over": True}, True), ({}, False)])
def test_stop_dismisses_a_waiting_worker(membership, coordinator, fields, is_final):
    """Who is not wanted just now could be of use again."""
    joining = Doing(membership.join, -1)
    coordinator.accept().send("stop", reason="the job is over", **fields)
    assert isinstance(joining.end().error, Dismissed)
    assert joining.error.is_final == is_final


def test_who_was_to_leave_makes_room_for_nobody(membership, coordinator):
    """Nor does it wait until others have the state."""
    call = trained(membership, coordinator)
    assert membership.can_stream_state()
    membership.leave_soon()
    assert not membership.can_stream_state()
    call.send("stop", reason="its slot is no longer wanted")
    assert Doing(membership.join, 5).end().error.is_final


@pytest.mark.parametrize("membership", [{"away_seconds": 0.2}], indirect=True)
def test_a_coordinator_may_take_longer_to_be_there_than_to_come_back(membership, coordinator):
    port = coordinator.port
    coordinator.socket.close()
    joining = Doing(membership.join, -1)
    watch(lambda: joining.error is None, 0.5)
    coordinator.socket = socket.create_server(("127.0.0.1", port))
    call = coordinator.accept()
    call.ping()
    coordinator.socket.close()
    call.hang_up()
    assert not joining.end().error.is_final


def placed(membership, coordinator):
    """A worker with its place in ring 1, and that ring."""
    joining = Doing(membership.join, -1)
    call = coordinator.accept()
    call.send("assign", **place(1))
    return call, joining.end().result


def trained(membership, coordinator):
    """A worker in ring 1, which it has told."""
    call, world = placed(membership, coordinator)
    membership.formed(world)
    call.hear("formed")
    return call


@pytest.mark.parametrize("leaves", [False, True])
def test_a_new_connection_tells_what_the_old_one_may_have_lost(membership, coordinator, leaves):
    call = trained(membership, coordinator)
    if leaves:
        membership.leave_soon()
    call.hang_up()
    hello = coordinator.accept().hello
    assert (hello["generation"], hello["formed"], hello["is_leaving"]) == (1, 1, leaves)
    if not leaves:
        assert not hello["is_ready"]
        assert not membership.wants_change()


def test_who_is_still_being_given_the_state_says_so_and_when_it_has_all(membership, coordinator):
    call, world = placed(membership, coordinator)
    membership.formed(world, has_state=False)
    assert not call.hear("formed")["has_state"]
    call.hang_up()
    call = coordinator.accept()
    assert not call.hello["has_state"]
    membership.formed(world)
    assert call.hear("formed").get("has_state", True)


@pytest.mark.parametrize("membership", [{"leave_alone_seconds": 0.1}], indirect=True)
def test_a_worker_that_is_to_leave_does_not_wait_for_a_coordinator_that_is_away(
    membership, coordinator
):
    call = trained(membership, coordinator)
    coordinator.socket.close()
    call.hang_up()
    membership.leave_soon()
    wait_until(membership.wants_change)
    assert isinstance(Doing(membership.join, 5).end().error, Dismissed)


def test_a_worker_that_is_still_getting_warm_ends_at_once(membership, ends):
    membership.leave_soon()
    assert ends == [143]


def dismiss(call, reporting):
    """End the job, and so a worker's report of its end."""
    call.send("stop", reason="the job is over")
    assert reporting.end().error is None


def test_the_result_is_told_again_to_a_coordinator_that_was_restarted(membership, coordinator):
    call = trained(membership, coordinator)
    finishing = Doing(membership.finished, Success(steps=7, metrics={}, output=""))
    assert call.hear("finished")["result"]["steps"] == 7
    call.hang_up()
    call = coordinator.accept()
    assert call.hear("finished")["result"]["steps"] == 7
    dismiss(call, finishing)


def test_a_party_tells_the_coordinator_neither_metrics_nor_paths(coordinator, tmp_path):
    address = address_of(coordinator, worker_host="north", slot=0)
    membership = CoordinatedMembership(FormsAtOnce(), address, TIMINGS, tmp_path / "result.json")
    result = Success(steps=7, metrics={"loss": 0.5}, examples=60, output="/models/north")
    finishing = Doing(membership.finished, result)
    call = coordinator.accept()
    assert call.hear("finished")["result"] == {"steps": 7, "metrics": {}, "output": ""}
    dismiss(call, finishing)
    membership.close()
    assert outcome.load(tmp_path / "result.json") == result


@pytest.mark.parametrize("text", ["x" * 200_000, "\U0001f600" * 50_000, "\0\n" * 50_000])
def test_a_long_error_is_told_shortened(membership, coordinator, text):
    reporting = Doing(membership.report_error, UserCodeError(text))
    call = coordinator.accept()
    assert not call.hello["is_ready"]
    reported = call.hear("failed")["error"]
    assert reported["error"] == "UserCodeError"
    assert text.startswith(reported["message"])
    assert len(reported["message"]) > 1000
    dismiss(call, reporting)


@pytest.mark.parametrize("answer", [b"\xff\xfe\xfd\n", b"HTTP/1.1 200 OK\r\n\r\n", b"edl\n", b""])
def test_what_is_no_coordinator_is_called_again(membership, coordinator, answer):
    joining = Doing(membership.join, -1)
    stranger = coordinator.socket.accept()[0]
    stranger.sendall(answer)
    stranger.close()
    coordinator.accept().send("assign", **place(1))
    assert joining.end().result.generation == 1


@pytest.mark.parametrize(
    "send",
    [
        lambda call: call.connection.sendall(b"noise\n"),
        lambda call: call.connection.sendall(b"\xff\n"),
        lambda call: call.send("change"),  # Without its fields.
    ],
)
def test_a_line_that_is_no_message_ends_the_connection_and_not_the_worker(
    membership, coordinator, send
):
    send(trained(membership, coordinator))
    assert coordinator.accept().hello["generation"] == 1


def test_a_place_that_an_older_coordinator_deals_is_not_taken(membership, coordinator):
    call = trained(membership, coordinator)
    call.send("change", generation=5)
    call.send("change", generation=2)
    wait_until(membership.wants_change)
    joining = Doing(membership.join, 7)
    call.hear("ready")
    call.send("assign", **place(1))
    call.ping()
    assert joining.result is None
    call.send("assign", **place(2))
    assert joining.end().result.generation == 2


def test_a_place_said_again_ends_the_connection_and_is_not_taken(membership, coordinator):
    joining = Doing(membership.join, -1)
    call = coordinator.accept()
    line = call.seal("assign", **place(1))
    call.connection.sendall(line + line)
    assert joining.end().result.generation == 1
    assert coordinator.accept().hello["generation"] == 1


@pytest.mark.parametrize("membership", [{"first_seconds": 0.2}], indirect=True)
def test_a_coordinator_that_never_proves_itself_is_given_up(membership, coordinator):
    joining = Doing(membership.join, -1)
    coordinator.socket.settimeout(0.05)
    while joining.error is None:
        with contextlib.suppress(TimeoutError):
            connection = coordinator.socket.accept()[0]
            connection.sendall(b"edl 00\n")
            connection.close()
    assert isinstance(joining.end().error, Dismissed)


@pytest.mark.parametrize("membership", [{"quiet_seconds": 0.1}], indirect=True)
def test_a_coordinator_that_is_quiet_is_called_again(membership, coordinator):
    call = trained(membership, coordinator)
    assert coordinator.accept().hello["generation"] == 1
    assert call.ends()


@pytest.mark.parametrize("membership", [{"quiet_seconds": 0.1}], indirect=True)
def test_a_coordinator_that_does_not_even_greet_is_called_again(membership, coordinator):
    joining = Doing(membership.join, -1)
    silent = coordinator.socket.accept()[0]
    coordinator.accept().send("assign", **place(1))
    assert joining.end().result.generation == 1
    silent.close()


@pytest.mark.parametrize("membership", [{"quiet_seconds": 0.2}], indirect=True)
def test_a_full_buffer_does_not_freeze_the_training(membership, coordinator):
    trained(membership, coordinator)  # And reads no more.

    def report():
        for step in range(100_000):
            membership._reported_at = 0.0
            membership.progress(step)
            if membership._channel is None:
                return step
        return None

    assert Doing(report).end().result is not None


def test_close_hangs_up_at_once(membership, coordinator):
    call = trained(membership, coordinator)
    membership.close()
    assert call.ends()


def test_an_answer_to_a_ping_says_what_the_main_thread_does(membership, coordinator):
    call = trained(membership, coordinator)
    with membership.doing("works", "step 3", is_waiting=lambda: True):
        said = call.ping()
    assert (said["doing"], said["phase"], said["generation"]) == ("waits", "step 3", 1)
    said = call.ping()
    assert (said["doing"], said["phase"]) == ("joins", "forming generation 1")
    membership.failed(CollectiveFailed("the ring broke"))
    joining = Doing(membership.join, 3)
    call.hear("ready")
    assert call.ping()["doing"] == "joins"
    call.send("stop", reason="enough")
    joining.end()


def waited(membership):
    """The causes of the time since the last ring, in the order in which they began."""
    return [cause for cause, seconds in membership.activity.account()[0].items() if seconds > 0.01]


def test_the_wait_of_a_rank_says_what_it_waits_for(membership, coordinator):
    call = trained(membership, coordinator)
    joining = Doing(membership.join, 7)
    call.hear("ready")
    wait_until(lambda: "forming" in waited(membership))
    call.send("shortage", is_short=True)
    wait_until(lambda: "below_min_np" in waited(membership))
    call.hang_up()
    wait_until(lambda: "coordinator_away" in waited(membership))
    call = coordinator.accept()
    call.send("shortage", is_short=True)
    call.ping()
    assert membership.activity.account()[2] == "below_min_np"
    call.send("shortage", is_short=False)
    wait_until(lambda: membership.activity.account()[2] == "warm", seconds=LIMIT_SECONDS)
    call.send("assign", **place(2))
    joining.end()


def test_the_end_of_a_job_may_wait_for_its_coordinator(membership, coordinator):
    call = trained(membership, coordinator)
    finishing = Doing(membership.finished, Success(steps=7, metrics={}, output=""))
    call.hear("finished")
    coordinator.socket.close()
    call.hang_up()
    wait_until(lambda: "coordinator_away" in waited(membership))
    coordinator.socket = socket.create_server(("127.0.0.1", coordinator.port))
    call = coordinator.accept()
    assert call.hear("finished")["result"]["steps"] == 7
    wait_until(lambda: membership.activity.account()[2] == "ending")
    dismiss(call, finishing)


def test_a_worker_that_hangs_leaves_a_trace_and_its_last_account(
    membership, coordinator, ends, tmp_path
):
    path = tmp_path / "events.jsonl"
    call = trained(membership, coordinator)
    with EventLog(path, "localhost:3") as log:
        membership.activity.write_to(log)
        with membership.doing("works", "step 7", "computing"):
            call.send("end", reason="no progress")
            wait_until(lambda: ends)
    trace, account = (recorded.event for recorded in read(path))
    assert (trace.phase, trace.generation, trace.reason) == ("step 7", 1, "no progress")
    assert account.doing == ""
    assert account.seconds["hung"] > 0
    assert "computing" not in account.seconds


def test_a_worker_that_hangs_writes_its_stacks_and_ends(membership, coordinator, ends, capfd):
    call = trained(membership, coordinator)
    name = inspect.currentframe().f_code.co_name
    call.send("dump", reason="no progress")
    call.ping()
    assert not ends
    assert name in capfd.readouterr().err
    call.send("end", reason="no progress")
    wait_until(lambda: ends)
    assert ends == [EXIT_HUNG]
    assert name in capfd.readouterr().err
