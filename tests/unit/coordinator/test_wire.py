"""Lines between coordinator and workers: only what the other end said, once and in its order."""

import hashlib
import hmac

import pytest

from edl_horovod.coordinator.wire import MAX_LINE_BYTES, Channel, WireError, new_nonce

SECRET = b"a secret of the job"


def channels(secret=SECRET, client_secret=SECRET):
    server_nonce, client_nonce = new_nonce(), new_nonce()
    nonces = {"server_nonce": server_nonce, "client_nonce": client_nonce}
    server = Channel(secret, **nonces, is_server=True)
    return server, Channel(client_secret, **nonces, is_server=False)


def test_messages_arrive_as_sent_in_both_directions():
    server, client = channels()
    messages = [{"kind": "ping"}, {"kind": "x", "text": "Zürich\n \0", "list": [1, 2.5, None]}]
    for message in messages:
        assert client.open(server.seal(message)) == message
        assert server.open(client.seal(message)) == message


def test_a_message_is_one_line():
    server, _ = channels()
    assert server.seal({"kind": "x", "text": "a\nb\r\n"}).count(b"\n") == 1


def test_another_secret_is_refused():
    server, client = channels(client_secret=b"another")
    with pytest.raises(WireError):
        server.open(client.seal({"kind": "hello"}))


def test_a_line_of_another_connection_is_refused():
    _, client = channels()
    server, _ = channels()
    with pytest.raises(WireError):
        server.open(client.seal({"kind": "hello"}))


def test_a_replayed_line_is_refused():
    server, client = channels()
    line = client.seal({"kind": "finished"})
    server.open(line)
    with pytest.raises(WireError):
        server.open(line)


def test_a_reflected_line_is_refused():
    server, client = channels()
    client.seal({"kind": "ping"})
    with pytest.raises(WireError):
        server.open(server.seal({"kind": "ping"}))


def test_reordered_and_left_out_lines_are_refused():
    server, client = channels()
    client.seal({"kind": "first"})
    second = client.seal({"kind": "second"})
    with pytest.raises(WireError):
        server.open(second)


@pytest.mark.parametrize("place", [0, 10, 63, 64, 65, 70, -2])
def test_a_damaged_byte_is_refused(place):
    server, client = channels()
    line = bytearray(client.seal({"kind": "ready", "step": 7}))
    line[place] ^= 1
    with pytest.raises(WireError):
        server.open(bytes(line))


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b" \n", b"{}\n", b'{"kind": "ping"}\n', b"\xff\xfe\x00\n", b"0" * 64 + b" {}\n"],
)
def test_a_line_without_a_code_is_refused(line):
    server, _ = channels()
    with pytest.raises(WireError):
        server.open(line)


def test_a_refused_line_does_not_move_the_count():
    server, client = channels()
    with pytest.raises(WireError):
        server.open(b"noise\n")
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


def test_a_line_that_is_too_long_is_refused():
    server = Channel(SECRET, server_nonce="s", client_nonce="c", is_server=True)
    with pytest.raises(WireError):
        server.open(signed('{"kind":"' + "a" * MAX_LINE_BYTES + '"}'))


def test_numbers_that_are_none_are_sent_as_nothing():
    server, client = channels()
    line = client.seal({"kind": "finished", "metrics": {"loss": float("nan"), "auc": 0.5}})
    assert server.open(line)["metrics"] == {"loss": None, "auc": 0.5}
