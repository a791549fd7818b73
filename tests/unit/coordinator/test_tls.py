"""Mutual TLS: who may talk to whom, and what those are told who may not."""

import asyncio
import contextlib
import gc
import logging
import os
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from edl_horovod.coordinator import tls, wire
from edl_horovod.coordinator.wire import Listener, WireError
from tests.waiting import until

AUTHORITY = tls.new_authority()
OTHER = tls.new_authority()
NORTH = tls.sign(AUTHORITY, tls.holder_of_party("north"))
COORDINATOR = tls.sign(AUTHORITY, tls.COORDINATOR)
LIMIT = 9
OLD = timedelta(hours=-1)


class Server:
    """Accepts connections, and notes who calls and why it refuses others."""

    def __init__(self, identity):
        self._context = tls.context(identity, tls.MESSAGES, tls.LINK, is_server=True)
        self.callers, self.refused = [], []
        self._listener = Listener(self._serve, max_line_bytes=1000, max_unauthenticated=LIMIT)

    async def _serve(self, reader, writer):
        try:
            await tls.accept(writer, self._context)
        except WireError as error:
            self.refused.append(str(error))
            return
        self.callers.append((tls.holder(writer), tls.protocol(writer)))
        writer.write(b"hello\n")
        await writer.drain()

    async def __aenter__(self):
        self.port = await self._listener.start("127.0.0.1")
        return self

    async def __aexit__(self, *_):
        self._listener.close()


async def call(port, identity, protocol=tls.MESSAGES):
    """What a client reads first, and the holder whom it talks to."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls.context(identity, protocol)
    )
    with contextlib.closing(writer):
        return tls.holder(writer), await reader.readline()


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


async def refused(port, identity):
    with pytest.raises(ssl.SSLError) as caught:
        await call(port, identity)
    return tls.refusal(caught.value, "the coordinator")


async def test_both_ends_learn_the_holder_of_the_others_certificate():
    async with Server(COORDINATOR) as server:
        assert await call(server.port, NORTH, tls.LINK) == (tls.COORDINATOR, b"hello\n")
    assert server.callers == [(tls.holder_of_party("north"), tls.LINK)]


REFUSED = pytest.mark.parametrize(
    ("authority", "lifetime", "message"),
    [(OTHER, tls.LIFETIME, "is not of this training"), (AUTHORITY, OLD, "has expired")],
    ids=["other training", "expired"],
)


@REFUSED
async def test_a_server_refuses_a_certificate_and_says_why(authority, lifetime, message):
    client = tls.sign(authority, tls.holder_of_party("north"), lifetime)
    async with Server(COORDINATOR) as server:
        # The client accepts the server, which refuses the client.
        mixed = replace(client, authority=NORTH.authority)
        assert (await call(server.port, mixed))[1] == b""
    assert server.callers == []
    assert server.refused == [f"the certificate of the caller from 127.0.0.1 {message}"]


@REFUSED
async def test_a_client_refuses_a_certificate(authority, lifetime, message):
    async with Server(tls.sign(authority, tls.COORDINATOR, lifetime)) as server:
        assert await refused(server.port, NORTH) == f"the certificate of the coordinator {message}"
    assert server.callers == []


async def test_who_shows_no_certificate_is_refused():
    context = ssl.create_default_context(cadata=NORTH.authority)
    context.check_hostname = False
    async with Server(COORDINATOR) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        with contextlib.closing(writer):
            assert await reader.readline() == b""
    assert server.callers == []
    assert len(server.refused) == 1


async def test_a_server_without_tls_is_named_as_such():
    async def greet(reader, writer):
        with contextlib.closing(writer):
            writer.write(b"edl 0123456789abcdef0123456789abcdef\n")
            await reader.read()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        text = await refused(server.sockets[0].getsockname()[1], NORTH)
    assert text == "the coordinator does not encrypt"


async def test_a_caller_that_says_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.1)
    async with Server(COORDINATOR) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.closing(writer):
            assert await reader.read() == b""
    assert server.callers == []


async def test_silent_callers_above_the_limit_are_let_go_without_an_error(caplog):
    async with Server(COORDINATOR) as server, contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(LIMIT + 3):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.enter_context(contextlib.closing(writer))
            readers.append(reader)
            await asyncio.sleep(0.01)  # Its handshake has begun.
        async with asyncio.timeout(2):
            for reader in readers[:3]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert not any(reader.at_eof() for reader in readers[3:])
        assert await call(server.port, NORTH) == (tls.COORDINATOR, b"hello\n")
    gc.collect()  # So that errors of tasks are logged.
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_connection_that_ended_is_closed_although_its_caller_does_not_read(monkeypatch):
    monkeypatch.setattr(wire, "CLOSE_SECONDS", 0.1)
    async with Server(COORDINATOR) as server:
        context, before = tls.context(NORTH, tls.MESSAGES), num_descriptors()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        writer.transport.pause_reading()
        await until(lambda: server.callers)
        async with asyncio.timeout(10):
            await until(lambda: num_descriptors() == before + 1)  # The caller's own.
        wire.abort(writer)


def test_a_certificate_says_when_it_ends():
    left = tls.end_of(NORTH.certificate) - datetime.now(UTC)
    assert timedelta(days=364) < left <= timedelta(days=365)


@pytest.mark.parametrize("part", ["certificate", "key", "authority"])
def test_damage_is_an_error(part):
    with pytest.raises(ValueError, match="damaged"):
        tls.context(replace(NORTH, **{part: getattr(NORTH, part)[:100]}), tls.LINK)


def test_keys_are_not_shown():
    assert NORTH.key.splitlines()[1] not in repr(NORTH)
