"""Lines between coordinator and workers: only what the other end said, once and in its order."""

import asyncio
import contextlib
import functools
import hashlib
import hmac

import pytest

from edl_horovod.coordinator.wire import MAX_LINE_BYTES, Channel, Listener, WireError, new_nonce

SECRET = b"a secret of the job"


def channels(secret=SECRET, client_secret=SECRET):
    server_nonce, client_nonce = new_nonce(), new_nonce()
    nonces = {"server_nonce": server_nonce, "client_nonce": client_nonce}
    server = Channel(secret, **nonces, is_server=True)
    return server, Channel(client_secret, **nonces, is_server=False)


def test_messages_arrive_as_sent_in_both_directions():
    server, client = channels()
    messages = [{"kind": "ping"}, {"kind": "x", "text": "Zürich\n \0", "list": [1, 2.5, None]}]
    messages.append({"kind": "x", "text": "a\nb\r\n"})
    for message in messages:
        line = server.seal(message)
        assert line.count(b"\n") == 1
        assert client.open(line) == message
        assert server.open(client.seal(message)) == message


def of_another_secret():
    server, client = channels(client_secret=b"another")
    return server, client.seal({"kind": "hello"})


def of_another_connection():
    return channels()[0], channels()[1].seal({"kind": "hello"})


def replayed():
    server, client = channels()
    line = client.seal({"kind": "finished"})
    server.open(line)
    return server, line


def reflected():
    server, client = channels()
    client.seal({"kind": "ping"})
    return server, server.seal({"kind": "ping"})


def after_one_left_out():
    server, client = channels()
    client.seal({"kind": "first"})
    return server, client.seal({"kind": "second"})


def too_long():
    server = Channel(SECRET, server_nonce="s", client_nonce="c", is_server=True)
    return server, signed('{"kind":"' + "a" * MAX_LINE_BYTES + '"}')


def damaged(place):
    server, client = channels()
    line = bytearray(client.seal({"kind": "ready", "step": 7}))
    line[place] ^= 1
    return server, bytes(line)


FOREIGN = [of_another_secret, of_another_connection, replayed, reflected, after_one_left_out]
DAMAGED = [functools.partial(damaged, place) for place in (0, 10, 63, 64, 65, 70, -2)]


@pytest.mark.parametrize("line", [*FOREIGN, too_long, *DAMAGED])
def test_a_line_that_the_other_end_did_not_send_now_is_refused(line):
    server, text = line()
    with pytest.raises(WireError):
        server.open(text)


NO_CODES = [b"", b"\n", b" \n", b"{}\n", b'{"kind": "ping"}\n', b"\xff\xfe\x00\n", b"noise\n"]


@pytest.mark.parametrize("line", [*NO_CODES, b"0" * 64 + b" {}\n"])
def test_a_line_without_a_code_is_refused_and_does_not_move_the_count(line):
    server, client = channels()
    with pytest.raises(WireError):
        server.open(line)
    assert server.open(client.seal({"kind": "ping"})) == {"kind": "ping"}


def signed(body, secret=SECRET, nonces="s:c"):
    text = f"{nonces}:c:0:{body}".encode()
    return f"{hmac.new(secret, text, hashlib.sha256).hexdigest()} {body}\n".encode()


@pytest.mark.parametrize(
    "body",
    [
        *("", "no json", "[1]", '"ping"', "7", "{}", '{"kind": 7}', "[" * 5000 + "]" * 5000),
        *(
            f'{{"kind": "hello", "slot": {number}}}'
            for number in ("Infinity", "-Infinity", "NaN", "1e999", "9" * 20, "9" * 5000)
        ),
    ],
)
def test_what_is_no_message_is_refused_even_with_the_right_code(body):
    server = Channel(SECRET, server_nonce="s", client_nonce="c", is_server=True)
    with pytest.raises(WireError):
        server.open(signed(body))


def test_a_message_that_is_too_long_is_not_sent():
    server, client = channels()
    with pytest.raises(WireError):
        server.seal({"kind": "x", "text": "a" * MAX_LINE_BYTES})
    assert client.open(server.seal({"kind": "ping"})) == {"kind": "ping"}


def test_numbers_that_are_none_are_sent_as_nothing():
    server, client = channels()
    line = client.seal({"kind": "finished", "metrics": {"loss": float("nan"), "auc": 0.5}})
    assert server.open(line)["metrics"] == {"loss": None, "auc": 0.5}


async def test_a_listener_that_is_cancelled_while_it_starts_leaves_no_port_open():
    def listener():
        return Listener(lambda *_: asyncio.sleep(0), max_line_bytes=1, max_unauthenticated=1)

    with contextlib.closing(listener()) as first:
        port = await first.start("127.0.0.1")
    for num_turns in range(50):  # It starts within a few turns of the event loop.
        with contextlib.closing(listener()) as taken:
            start = asyncio.create_task(taken.start("127.0.0.1", port))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            if start.done():
                break
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        with contextlib.closing(listener()) as second:
            await second.start("127.0.0.1", port)
    assert start.done()
    assert num_turns > 1
