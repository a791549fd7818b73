"""What somebody without the job's secret can do to a running job: nothing.

Each scenario has a real ring over real TCP, lets somebody in, and then has the coordinator do its
work: take in one more worker, without the loss of anybody.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path

import pytest

from edl_horovod.coordinator import workers
from edl_horovod.coordinator.wire import MAX_LINE_BYTES, Channel, greeting
from tests.unit.coordinator.conftest import ask

OPEN_FILES = 1024
NUM_HALF_OPEN = 2000
INTRUDER = """
import contextlib, select, socket, sys

port, count = map(int, sys.argv[1:])
data = sys.stdin.buffer.readline().rstrip(b"\\n")
opened = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(count)]
for sock in opened:
    sock.connect_ex(("127.0.0.1", port))
for sock in opened:
    assert select.select([], [sock], [], 60)[1], "not connected"
    sock.settimeout(60)
    with contextlib.suppress(ConnectionError):
        sock.sendall(data)
print("all are open", flush=True)
sys.stdin.buffer.read()
"""
SOCKETS_OF_AN_INTRUDER = 500
MAX_GROWTH_BYTES = 96 << 20
FORGED = {
    "finished": {"result": {"steps": 1, "metrics": {}, "output": ""}},
    "failed": {"error": {"error": "JobFailed", "message": "so it is said"}},
    "leaving": {},
    "ready": {"generation": 1, "step": 10**9, "reason": "because"},
    "formed": {"generation": 10**9},
}


@pytest.fixture
def without_errors(caplog):
    """Nothing is logged as an error, also when the coordinator and its event loop have ended."""
    yield
    assert [log for log in caplog.get_records("call") if log.levelname == "ERROR"] == []


@pytest.fixture
def few_files():
    """The limit of open files that many a shell has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def resident_bytes():
    def read():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    return read


async def call(job):
    """A connection of a stranger, and the nonce in the coordinator's greeting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
    return reader, writer, (await reader.readline()).decode().split()[1]


async def assert_hung_up(reader, writer, data):
    """What is sent ends the connection without an answer."""
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    writer.close()


@contextlib.asynccontextmanager
async def half_open(port, count, data=b""):
    """Connections that send this much and no more.

    They are those of other processes: no process may open so many files, and what an intruder
    keeps is not to be measured.
    """
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    arguments = ("-I", "-S", "-c", INTRUDER, str(port), str(SOCKETS_OF_AN_INTRUDER))
    intruders = [
        await asyncio.create_subprocess_exec(sys.executable, *arguments, **pipes)
        for _ in range(count // SOCKETS_OF_AN_INTRUDER)
    ]
    try:
        for intruder in intruders:
            intruder.stdin.write(data + b"\n")
        for intruder in intruders:
            assert await intruder.stdout.readline() == b"all are open\n"
        yield
    finally:
        for intruder in intruders:
            intruder.stdin.close()
            await intruder.wait()
        # The event loop must not end while asyncio holds connections that no handler has yet: it
        # would leave their sockets open.
        for _ in range(10):
            await asyncio.sleep(0)


async def assert_unimpressed(job, first):
    """The ring is as it was, and the coordinator still does its work."""
    assert job.generations() == [(1, True)]
    assert first.kinds() == ["assign"]
    await job.ring(first, await job.worker(1))
    assert job.generations() == [(1, True), (2, True)]
    assert not job.task.done()


@pytest.mark.parametrize("kind", FORGED)
async def test_messages_without_the_secret(job, kind):
    (first,) = await job.ring_of(0)
    stranger = job.fake(0, secret=b"guessed")
    stranger.name = first.name
    await stranger.connect()
    stranger.send(kind, **FORGED[kind])
    await job.until(lambda: not stranger.is_connected)
    assert stranger.heard == []
    assert first.is_connected
    await assert_unimpressed(job, first)


async def test_what_a_worker_once_said_said_again(job):
    """All lines of a real worker's connection, recorded and sent anew."""
    (first,) = await job.ring_of(0)
    spied = await job.worker(1)
    await job.ring(first, spied)
    spied.hang_up()
    await job.ring(first, least_generation=3)
    num_generations = len(job.generations())
    reader, writer, _ = await call(job)  # The nonce is another one.
    await assert_hung_up(reader, writer, spied.said)
    assert len(job.generations()) == num_generations
    await job.ring(first, await job.worker(1))


async def assert_hello_refused(job, nonce, slot):
    """With the secret, but with a nonce or a slot that is none."""
    (first,) = await job.ring_of(0)
    reader, writer, server_nonce = await call(job)
    nonces = {"server_nonce": server_nonce, "client_nonce": nonce}
    channel = Channel(job.settings.secret, **nonces, is_server=False)
    hello = {"kind": "hello", "worker": "w", "host": "localhost", "slot": slot}
    hello |= {"generation": 0, "is_ready": True, "step": -1, "pid": 1}
    hello |= {"formed": 0, "is_leaving": False}
    # As another program would seal it: ours makes null of what is no number.
    body = json.dumps(hello)
    code = channel._code("c", 0, body)
    await assert_hung_up(reader, writer, greeting(nonce) + f"{code} {body}\n".encode())
    await assert_unimpressed(job, first)


@pytest.mark.parametrize("nonce", ["", "x" * 32, "0" * 31, "0" * 33, "a:c:0:{}", "0" * 60_000])
async def test_a_nonce_that_is_none(job, nonce):
    """It becomes a part of what the codes cover: even with the secret only a nonce is taken."""
    await assert_hello_refused(job, nonce, 1)


@pytest.mark.parametrize("slot", [float("inf"), float("nan"), 1e400, 10**30, -1, 10**7, 1.5, "1"])
async def test_a_slot_that_is_none(job, caplog, without_errors, slot):
    """Even with the secret only a slot is taken."""
    await assert_hello_refused(job, "0" * 32, slot)
    assert "connection refused" in caplog.text


HALVES = {"nothing": b"", "much and no end": b"x" * (MAX_LINE_BYTES - 1)}


@pytest.mark.long(after=1)
@pytest.mark.parametrize("data", HALVES.values(), ids=HALVES.keys())
async def test_thousands_of_half_open_connections(job, few_files, resident_bytes, data):
    (first,) = await job.ring_of(0)
    before = resident_bytes()
    async with half_open(job.port, NUM_HALF_OPEN, data):
        began = time.monotonic()
        await assert_unimpressed(job, first)
        seconds = time.monotonic() - began
        unauthenticated = job.coordinator._server.listener.unauthenticated
        assert len(unauthenticated) <= workers.MAX_UNAUTHENTICATED
        assert resident_bytes() - before < MAX_GROWTH_BYTES
        assert seconds < 20


@pytest.mark.job(timings={"hello_seconds": 0.2})
async def test_a_connection_that_proves_nothing_is_ended(job):
    (first,) = await job.ring_of(0)
    reader, writer, _ = await call(job)
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for byte in b"edl 0123456789abcdef":  # Always something, and never enough.
            writer.write(bytes([byte]))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(reader.read(1), 0.05) == b"":
                    break
    assert time.monotonic() - began < 1.0
    writer.close()
    await assert_unimpressed(job, first)


@pytest.mark.parametrize(
    ("count", "data", "num_lines"),
    [
        (100, b"GET / HTTP/1.1\r\n\r\n", 1),
        (10, b"GET / HTTP/1.1\r\n\r\n" * 500, 1),
        (10, bytes(range(256)) * 40, 1),
        (10, b"x" * (3 * MAX_LINE_BYTES), 0),
        (10, b"", 0),
    ],
    ids=["short requests", "long ones", "bytes", "an endless line", "nothing"],
)
async def test_strangers_cannot_fill_the_log(job, caplog, count, data, num_lines):
    """And who only knocks is not worth a line."""
    (first,) = await job.ring_of(0)
    with contextlib.ExitStack() as stack:
        for number in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", job.port)
            writer.write(data)
            stack.callback(writer.close)
            if number % 2:
                writer.close()
        await assert_unimpressed(job, first)
    assert caplog.text.count("refused") == num_lines


@pytest.mark.job(forming_seconds=8.0)
async def test_a_rendezvous_that_strangers_know_of(job, few_files):
    """They can reach its port while a ring forms; without the token they cannot use it."""
    first, second = await job.forming_ring_of(0, 1)
    port, token = first.place["rendezvous_port"], first.place["rendezvous_token"]
    assert token == second.place["rendezvous_token"]
    put = "PUT /{}/global/0 HTTP/1.1\r\nContent-Length: 3\r\n\r\nbad"
    assert await ask(port, put.format("global")) == (0, b"")
    assert await ask(port, put.format("0" * 32)) == (0, b"")
    async with half_open(port, 1500, b"PUT /"):
        assert await ask(port, put.format(f"{token}:0")) == (200, b"")
        assert await ask(port, f"GET /{token}:0/global/0 HTTP/1.1\r\n\r\n") == (200, b"bad")
    first.formed()
    second.formed()
    await job.ring(first, second)
