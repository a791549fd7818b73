"""The rendezvous server: Horovod's protocol, but a GET waits for its key."""

import asyncio
import contextlib
import errno
import socket
import time

import pytest

from edl_horovod.coordinator import forming
from edl_horovod.coordinator.forming import MAX_BODY_BYTES, Rendezvous
from tests.unit.coordinator import conftest
from tests.unit.coordinator.conftest import ask
from tests.waiting import hold, until


async def put(server, key, value):
    head = f"PUT /{server.token}:0{key} HTTP/1.1\r\nContent-Length: {len(value)}\r\n\r\n"
    return await ask(server.port, head, body=value)


async def get(server, key):
    return await ask(server.port, f"GET /{server.token}:0{key} HTTP/1.1\r\nHost: x\r\n\r\n")


async def post(server, path, body):
    return await conftest.exchange(server.port, f"{server.token}:0{path}", body)


async def exchange(server, rank, size, parts, scope="/global"):
    return await post(server, f"{scope}/{rank}/{size}", parts)


async def lonely(server, scope):
    """An exchange that nobody completes."""
    return await exchange(server, 0, 2, b"x", scope)


@pytest.fixture
def wait_seconds():
    return 5.0


@pytest.fixture
def server(wait_seconds):
    return Rendezvous("127.0.0.1", wait_seconds=wait_seconds)


async def test_a_value_comes_back_and_a_delete_is_answered(server):
    assert await put(server, "/global/0", b"\0address\n") == (200, b"")
    assert await get(server, "/global/0") == (200, b"\0address\n")
    request = f"DELETE /{server.token}:0/global/0 HTTP/1.1\r\n\r\n"
    assert await ask(server.port, request) == (200, b"")


async def test_a_get_waits_for_its_put(server):
    waiting = [asyncio.create_task(get(server, "/global/1")) for _ in range(20)]
    await put(server, "/global/0", b"another")
    await get(server, "/global/0")
    assert not any(task.done() for task in waiting)
    await put(server, "/global/1", b"it")
    assert await asyncio.gather(*waiting) == [(200, b"it")] * 20


@pytest.mark.parametrize("wait_seconds", [0.2])
@pytest.mark.parametrize(("ask_for", "status"), [(get, 404), (lonely, 408)])
async def test_what_never_comes_is_answered_after_the_wait(server, wait_seconds, ask_for, status):
    began = time.monotonic()
    assert (await ask_for(server, "/global/9"))[0] == status
    assert time.monotonic() - began >= wait_seconds


@pytest.mark.parametrize("wait_seconds", [8.0])
async def test_abandoned_answers_all_who_wait_at_once_with_nothing(server):
    waiting = [asyncio.create_task(get(server, "/global/9")) for _ in range(3)]
    await put(server, "/global/0", b"there")
    began = time.monotonic()
    await server.abandon()
    answers = await asyncio.gather(*waiting)
    assert time.monotonic() - began < 2.0
    assert [*answers, await get(server, "/global/0")] == [(200, b"")] * 4


@pytest.mark.parametrize("size", [2, 3, 8])
async def test_each_member_gets_what_the_others_have_for_it(server, size):
    def part(giver, taker):
        return f"{giver}>{taker};".encode()

    def others(rank):
        return [other for other in range(size) if other != rank]

    ranks = list(reversed(range(size)))
    parts_of = {rank: b"".join(part(rank, other) for other in others(rank)) for rank in ranks}
    exchanges = (exchange(server, rank, size, parts_of[rank]) for rank in ranks)
    for rank, answer in zip(ranks, await asyncio.gather(*exchanges), strict=True):
        assert answer == (200, b"".join(part(other, rank) for other in others(rank)))


async def test_an_exchange_waits_for_all_and_may_be_asked_for_again(server):
    first = asyncio.create_task(exchange(server, 0, 3, b"0102"))
    second = asyncio.create_task(exchange(server, 1, 3, b"1012"))
    other = await asyncio.gather(*(exchange(server, r, 2, b"xy", "/local_a") for r in (0, 1)))
    assert other == [(200, b"xy")] * 2
    assert not first.done()
    assert not second.done()
    answers = [await exchange(server, 2, 3, b"2021"), await first, await second]
    expected = [b"0212", b"1020", b"0121", b"1020"]
    assert [*answers, await exchange(server, 0, 3, b"0102")] == [(200, e) for e in expected]


@pytest.mark.parametrize("wait_seconds", [60.0])
async def test_an_exchange_ends_at_once_where_the_ring_is_given_up(server):
    waiting = asyncio.create_task(exchange(server, 0, 2, b"x"))
    await hold(lambda: not waiting.done(), 0.05)
    await server.abandon()
    assert [(await waiting)[0], (await exchange(server, 1, 2, b"x"))[0]] == [410, 410]


BAD_EXCHANGES = {
    "no rank": ("/global/x/3", b"ab"),
    "rank beyond the size": ("/global/3/3", b"ab"),
    "nobody else": ("/global/0/1", b""),
    "no part for each": ("/global/0/3", b"abc"),
    "nothing": ("/global/0/3", b""),
    "another size than the others": ("/there/0/3", b"ab"),
    "another length than the others": ("/there/0/2", b"ab"),
}


@pytest.mark.parametrize(("path", "parts"), BAD_EXCHANGES.values(), ids=BAD_EXCHANGES.keys())
async def test_an_exchange_that_does_not_fit_is_refused(server, path, parts):
    waiting = asyncio.create_task(exchange(server, 0, 2, b"x", "/there"))
    await hold(lambda: not waiting.done(), 0.05)
    status, _ = await post(server, path, parts)
    assert await exchange(server, 1, 2, b"y", "/there") == (200, b"x")
    assert await waiting == (200, b"y")
    # A path that is none is not answered.
    assert status in (0, 400)


def is_refused(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


async def test_it_answers_for_a_while_after_its_end_and_then_no_more():
    async with Rendezvous("127.0.0.1", wait_seconds=5.0, linger_seconds=0.3) as server:
        port, waiting = server.port, asyncio.create_task(exchange(server, 0, 2, b"x"))
        await put(server, "/global/0", b"there")
    assert (await waiting)[0] == 410
    assert await get(server, "/global/0") == await put(server, "/a", b"") == (200, b"")
    await until(lambda: is_refused(port))


@pytest.mark.parametrize("has_formed", [True, False])
def test_its_port_closes_with_an_event_loop_that_ends(has_formed):
    """Right after the ring formed, and while it forms."""
    servers = []

    async def form():
        async with Rendezvous("127.0.0.1", wait_seconds=5.0) as server:
            servers.append(server)
            if not has_formed:
                await asyncio.sleep(60)

    async def scenario():
        if has_formed:
            return await form()
        task = asyncio.create_task(form())
        await until(lambda: servers)
        return task

    asyncio.run(scenario())
    assert is_refused(servers[0].port)


@pytest.mark.parametrize("first", ["global", "x" * 32, "", ":0", "%00"])
async def test_without_the_token_nothing_is_read_or_written(server, first):
    await put(server, "/global/0", b"a member's")
    head = f"PUT /{first}/global/0 HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
    assert await ask(server.port, head, body=b"bad") == (0, b"")
    assert await ask(server.port, f"GET /{first}/global/0 HTTP/1.1\r\n\r\n") == (0, b"")
    assert await get(server, "/global/0") == (200, b"a member's")


def test_each_generation_has_its_own_token():
    assert Rendezvous("x", wait_seconds=1).token != Rendezvous("x", wait_seconds=1).token


GARBAGE = {
    "nothing": b"\n",
    "one word": b"hello\r\n\r\n",
    "no text": b"\xff\xfe\x00\r\n\r\n",
    "no path": b"PUT a HTTP/1.1\r\n\r\n",
    "length is no number": b"PUT /TOKEN/b HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    "length is negative": b"PUT /TOKEN/b HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    "an endless line": b"G" * 200_000 + b"\n",
    "endless headers": b"GET /TOKEN/b HTTP/1.1\r\n" + b"x: y\r\n" * 10_000,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("wait_seconds", [0.2])
async def test_garbage_does_not_stop_it(server, garbage):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(garbage.replace(b"TOKEN", server.token.encode()))
    with contextlib.suppress(ConnectionError):  # Refused before all of it was read.
        await reader.read()
    writer.close()
    await put(server, "/a/key", b"value")
    assert await get(server, "/a/key") == (200, b"value")


async def test_half_open_and_broken_connections_do_not_stop_it(server):
    half = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
    for number, (_, writer) in enumerate(half):
        head = f"PUT /{server.token}/b HTTP/1.1\r\nContent-Length: 100\r\n\r\nonly a part"
        writer.write(head.encode()[: 2 * number])
        if number % 2:
            writer.close()
    await put(server, "/a/key", b"value")
    answer = await get(server, "/a/key")
    for _, writer in half:
        writer.close()
    assert answer == (200, b"value")


async def test_a_body_above_the_limit_is_refused_unread(server):
    path = f"/{server.token}/a/b"
    head = f"PUT {path} HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
    assert (await ask(server.port, head))[0] == 413


async def test_values_in_all_are_bounded_and_an_overwritten_one_counts_once(server):
    value = b"12345678" * (MAX_BODY_BYTES // 8)
    num_values = forming.MAX_TOTAL_BYTES // len(value)
    keys = ["key"] * 3 + list(range(num_values))
    answers = [(await put(server, f"/a/{key}", value))[0] for key in keys]
    assert answers == [200] * (2 + num_values) + [507]
    assert await get(server, "/a/key") == (200, value)


async def test_keys_are_bounded(server, monkeypatch):
    monkeypatch.setattr(forming, "MAX_KEYS", 2)
    answers = [(await put(server, f"/a/{key}", b""))[0] for key in (0, 1, 2, 1)]
    assert answers == [200, 200, 507, 200]
