"""Where the page is served, and by which names."""

import socket

import pytest

from edl_horovod.displays.page import address
from edl_horovod.errors import ConfigError


@pytest.mark.parametrize(
    "header",
    [
        "127.0.0.1:8265",
        "localhost",
        "LocalHost:1",
        "[::1]:8265",
        "10.1.2.3:80",
        "me.example:8265",
        socket.gethostname(),
    ],
)
def test_addresses_and_own_names_are_ours(header):
    assert address.is_name_of_ours(header, "Me.example")


@pytest.mark.parametrize(
    "header",
    [
        "",
        ":8265",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8265",
        "user@evil.example",
        "[::1",
        "127.0.0.1@evil.example",
        "x y",
        "1.2.3",
    ],
)
def test_other_names_are_not(header):
    assert not address.is_name_of_ours(header, "127.0.0.1")


def test_a_port_that_is_taken_is_named():
    with address.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(ConfigError, match=f"{port} .*taken"):
            address.listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("127.0.0.1", 65536, " 65535"),
        ("127.0.0.1", -1, " 65535"),
        ("192.0.2.1", 0, "--host=192.0.2.1"),
        ("no such host", 0, "--host=no such host"),
    ],
)
def test_where_one_cannot_listen_is_said(host, port, said):
    with pytest.raises(ConfigError, match=said):
        address.listen(host, port)


def test_urls():
    assert address.url() == "http://127.0.0.1:8265/"
    assert address.url("::1", 80) == "http://[::1]:80/"
    assert address.url("0.0.0.0", 80) == f"http://{socket.gethostname()}:80/"
