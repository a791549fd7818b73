"""Links of parties over TLS, with stand-ins for Gloo that listen as it does."""

import asyncio
import contextlib
import os
import socket
import struct
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl_horovod.config.schema import FederatedConfig
from edl_horovod.coordinator import tls, wire
from edl_horovod.coordinator.forming import Rendezvous
from edl_horovod.coordinator.settings import CoordinatorSettings, Timings
from edl_horovod.coordinator.workers import WorkerServer
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.ring.membership.links import Offer, PartyLinks, PartySettings
from tests.parallel.places import place_of
from tests.ports import free_port
from tests.unit.coordinator.conftest import exchange
from tests.waiting import until

AUTHORITY, OTHER = tls.new_authority(), tls.new_authority()
FORMING_SECONDS = 2.0
PAIR = ("north", "south")


def links_of(party, port, *, authority=AUTHORITY, lifetime=tls.LIFETIME, trusted=AUTHORITY):
    identity = tls.sign(authority, tls.holder_of_party(party), lifetime)
    trusts = tls.sign(trusted, tls.COORDINATOR).authority
    return PartyLinks(
        PartySettings(
            party=party,
            identity=tls.Identity(
                certificate=identity.certificate, key=identity.key, authority=trusts
            ),
            token_file=Path(f"{party}.token"),
            host="127.0.0.1",
            port=port,
            address="",
            forming_seconds=FORMING_SECONDS,
        )
    )


class Gloo:
    """One member of a group as Gloo is: it listens for each other one, and asks where they are."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.others = [other for other in range(size) if other != rank]
        self._listeners = {other: socket.create_server(("127.0.0.1", 0)) for other in self.others}
        self.peers = {}

    def addresses(self):
        parts = []
        for listener in self._listeners.values():
            host, port = listener.getsockname()
            inet = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port)
            parts.append((inet + socket.inet_aton(host)).ljust(128, b"\0") + b"\xff" * 8)
        return parts

    async def exchange(self, port, token):
        """Ask the rendezvous; the status, and the addresses of the others."""
        path = f"{token}:0/global/{self.rank}/{self.size}"
        status, answer = await exchange(port, path, b"".join(self.addresses()))
        return status, [answer[i : i + 136] for i in range(0, len(answer), 136)]

    async def accept(self):
        """Wait for a connection of each other member."""
        loop = asyncio.get_running_loop()
        for other, listener in self._listeners.items():
            listener.setblocking(False)
            async with asyncio.timeout(5):
                connection, _ = await loop.sock_accept(listener)
            self.peers[other] = await asyncio.open_connection(sock=connection, limit=1 << 20)

    async def close(self):
        for listener in self._listeners.values():
            listener.close()
        for _, writer in self.peers.values():
            wire.abort(writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Training:
    """The coordinator's port with one rendezvous after another, and parties."""

    def __init__(self, folder):
        settings = CoordinatorSettings(
            job_dir=folder,
            address="127.0.0.1",
            port=0,
            secret=b"secret",
            tls=tls.context(
                tls.sign(AUTHORITY, tls.COORDINATOR), tls.MESSAGES, tls.RENDEZVOUS, is_server=True
            ),
            config=SimpleNamespace(federated=FederatedConfig(parties=["a"])),
            timings=Timings(),
        )
        ignore = {"on_message": lambda *_: None, "on_lost": lambda *_: None}
        self.server = WorkerServer(settings, **ignore)
        self._links, self._gloos = [], []

    async def __aenter__(self):
        self.port = await self.server.listener.start("127.0.0.1")
        return self

    async def __aexit__(self, *_):
        for gloo in self._gloos:
            await gloo.close()
        await asyncio.gather(*(asyncio.to_thread(links.close) for links in self._links))
        self.server.listener.close()

    def rendezvous(self, names=PAIR):
        return Rendezvous(
            "127.0.0.1", wait_seconds=FORMING_SECONDS, shared=self.server, parties=names
        )

    async def party(self, name, **settings):
        links = links_of(name, self.port, **settings)
        self._links.append(links)
        connection = await asyncio.to_thread(links.connect, 5.0)
        connection.close()
        return links

    async def parties(self, *names):
        return [await self.party(name) for name in names]

    def gloo(self, rank, size):
        self._gloos.append(Gloo(rank, size))
        return self._gloos[-1]

    async def ring(self, *parties, names=PAIR):
        """Form a ring of parties; returns their stand-ins for Gloo."""
        async with self.rendezvous(names) as rendezvous:
            gloos = [self.gloo(rank, len(parties)) for rank in range(len(parties))]
            ports = [await begin(links, rendezvous, names) for links in parties]
            pairs = zip(gloos, ports, strict=True)
            answers = await asyncio.gather(*(g.exchange(p, rendezvous.token) for g, p in pairs))
            await asyncio.gather(*(gloo.accept() for gloo in gloos))
        for gloo, (status, addresses) in zip(gloos, answers, strict=True):
            assert status == 200
            # So Gloo waits for each of them.
            pairs = zip(addresses, gloo.addresses(), strict=True)
            assert all(address[4:8] > listener[4:8] for address, listener in pairs)
        return gloos


async def begin(links, rendezvous, names=PAIR):
    """Begin to form a ring; returns the port of the party's own rendezvous."""
    place = replace(place_of(0, 0, rendezvous.token), parties=names)
    place = await asyncio.to_thread(
        links.place, replace(place, rendezvous_address="nowhere.invalid")
    )
    assert place.rendezvous_address == "127.0.0.1"
    return place.rendezvous_port


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


async def test_each_pair_of_members_is_connected_in_both_directions(training):
    names = ("north", "south", "west")
    gloos = await training.ring(*await training.parties(*names), names=names)
    data = {
        (gloo.rank, other): bytes([gloo.rank, other]) * (1 << 20)
        for gloo in gloos
        for other in gloo.others
    }

    async def exchange(gloo, other):
        reader, writer = gloo.peers[other]
        writer.write(data[gloo.rank, other])
        expected = data[other, gloo.rank]
        async with asyncio.timeout(10):
            assert await reader.readexactly(len(expected)) == expected

    await asyncio.gather(*(exchange(gloo, other) for gloo in gloos for other in gloo.others))


async def test_a_link_ends_with_either_end_after_the_last_byte_and_leaves_no_descriptor(training):
    parties = await training.parties(*PAIR)
    before = None
    for number in range(5):
        first, second = await training.ring(*parties)
        ending, other = (first, second) if number % 2 else (second, first)
        _, writer = ending.peers[other.rank]
        writer.write(b"x" * 3_000_000)
        await writer.drain()
        writer.close()
        async with asyncio.timeout(5):
            assert len(await other.peers[ending.rank][0].read(-1)) == 3_000_000
        for gloo in (first, second):
            await gloo.close()
        if before is None:
            await until(lambda: not any(party._links for party in parties))
            before = num_descriptors()
    await until(lambda: num_descriptors() <= before)


async def test_a_ring_that_is_abandoned_is_given_up_at_once_and_the_next_one_forms(training):
    north, south = await training.parties(*PAIR)
    async with training.rendezvous() as rendezvous:
        port = await begin(north, rendezvous)
        asking = asyncio.create_task(training.gloo(0, 2).exchange(port, rendezvous.token))
        await asyncio.sleep(0.1)
        await rendezvous.abandon()
        async with asyncio.timeout(1):
            assert await asking == (410, [])
    await training.ring(north, south)


async def test_a_request_without_the_token_of_the_ring_is_not_sent_on(training):
    north = await training.party("north")
    async with training.rendezvous() as rendezvous:
        port = await begin(north, rendezvous)
        assert await training.gloo(0, 2).exchange(port, "0" * 32) == (400, [])


async def assert_ended(reader):
    async with asyncio.timeout(5):
        assert await reader.read() == b""


async def call(port, holder, authority=AUTHORITY):
    """A connection to a party's end of a link, of another that holds a certificate."""
    certificate = tls.sign(authority, tls.holder_of_party(holder))
    identity = replace(certificate, authority=tls.sign(AUTHORITY, tls.COORDINATOR).authority)
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls.context(identity, tls.LINK))


async def raw_offer(training, rendezvous, offer, *, holder="north", rank=0):
    """Ask by hand with an offer, as one of two ranks; the status, 0 for none, and the answer."""
    context = tls.context(tls.sign(AUTHORITY, tls.holder_of_party(holder)), tls.RENDEZVOUS)
    path = f"{rendezvous.token}:0/global/{rank}/2"
    return await exchange(training.port, path, offer.encode(), context)


async def answer_to(training, rendezvous, links, offer, *, rank=1, **caller):
    """Form a ring of two of a party, which has a rank, and of an offer by hand.

    Returns:
        The party's stand-in for Gloo, the status of its answer, and the answer to the offer.
    """
    gloo, port = training.gloo(rank, 2), await begin(links, rendezvous)
    (_, answer), (status, _) = await asyncio.gather(
        raw_offer(training, rendezvous, offer, rank=1 - rank, **caller),
        gloo.exchange(port, rendezvous.token),
    )
    return gloo, status, answer


async def test_a_party_that_cannot_be_reached_is_named_and_gloo_need_not_wait(training):
    south = await training.party("south")
    async with training.rendezvous() as rendezvous:
        closed = Offer(host="127.0.0.1", port=free_port(), key="00" * 16)
        gloo, status, _ = await answer_to(training, rendezvous, south, closed)
        assert status == 200
        await gloo.accept()
        await assert_ended(gloo.peers[0][0])
    failure = south.explained(CollectiveFailed("closed"))
    assert set(failure.unreached) == {"north"}
    assert all(text in str(failure).lower() for text in ("'north'", "refused"))


async def test_a_party_does_not_talk_to_another_that_answers_in_its_place(training):
    south, west = await training.parties("south", "west")
    async with training.rendezvous() as rendezvous:
        await begin(west, rendezvous)
        gloo, *_ = await answer_to(training, rendezvous, south, west._new_offer())
        await gloo.accept()
        await assert_ended(gloo.peers[0][0])
    assert "party:west" in str(south.explained(CollectiveFailed("closed")))


async def test_no_party_asks_the_rendezvous_for_another(training):
    offers = {n: Offer(host=n, port=1, key="00" * 16) for n in ("north", "forged", "south")}
    async with training.rendezvous() as rendezvous:

        async def ask(offer, **caller):
            return await raw_offer(training, rendezvous, offers[offer], **caller)

        assert await ask("forged", holder="south", rank=0) == (0, b"")
        assert await ask("forged", holder="west", rank=1) == (0, b"")
        north = asyncio.create_task(ask("north"))
        await asyncio.sleep(0.1)
        assert await ask("forged") == (409, b"")
        assert await ask("south", holder="south", rank=1) == (200, offers["north"].encode())
        assert await north == (200, offers["south"].encode())
        assert await ask("forged") == (409, b"")
        assert await ask("forged", holder="west") == (0, b"")


async def test_a_key_is_of_no_use_to_another_party_than_the_one_it_is_for(training):
    north = await training.party("north")
    async with training.rendezvous() as rendezvous:
        offer = Offer(host="127.0.0.1", port=1, key="00" * 16)
        gloo, status, answer = await answer_to(
            training, rendezvous, north, offer, rank=0, holder="south"
        )
        assert status == 200
        offer = Offer.decode(answer)

        reader, writer = await call(offer.port, "west")
        with contextlib.closing(writer):
            writer.write(bytes.fromhex(offer.key))
            await assert_ended(reader)
        reader, writer = await call(offer.port, "south")
        with contextlib.closing(writer):
            writer.write(bytes.fromhex(offer.key))
            await gloo.accept()
            gloo.peers[1][1].write(b"for south")
            async with asyncio.timeout(5):
                assert await reader.readexactly(9) == b"for south"


class Damaged(Offer):
    def encode(self):
        return b"[]".ljust(512)


@pytest.mark.parametrize(("kind", "status"), [(Damaged, 503), (Offer, 200)])
async def test_a_damaged_offer_fails_the_ring_and_not_the_party(training, kind, status):
    south = await training.party("south")
    async with training.rendezvous() as rendezvous:
        offer = kind(host="127.0.0.1", port=1, key="no key")
        gloo, received, _ = await answer_to(training, rendezvous, south, offer)
        assert received == status
        if status == 200:
            await gloo.accept()
            await assert_ended(gloo.peers[0][0])
    await training.ring(await training.party("north"), south)


async def test_a_connection_with_an_unknown_key_is_closed(training):
    north = await training.party("north")
    async with training.rendezvous() as rendezvous:
        await begin(north, rendezvous)
        reader, writer = await call(north._new_offer().port, "south")
        with contextlib.closing(writer):
            writer.write(b"k" * 16)
            await assert_ended(reader)


async def test_thousands_of_refused_callers_do_not_fill_the_log(training, caplog):
    north = await training.party("north")
    async with training.rendezvous() as rendezvous:
        await begin(north, rendezvous)
        offer = north._new_offer()
        for _ in range(5):
            reader, writer = await call(offer.port, "south", authority=OTHER)
            with contextlib.closing(writer), contextlib.suppress(OSError):
                await reader.read()
    assert len([record for record in caplog.records if "refused" in record.message]) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"trusted": OTHER, "authority": OTHER}, "training"),
        ({"lifetime": -tls.CLOCKS_DIFFER / 2}, "expired"),
    ],
    ids=["other training", "expired"],
)
async def test_a_party_with_a_wrong_token_is_told_so_with_its_name_and_file(
    training, settings, reason
):
    with pytest.raises(ConfigError, match=f"'north'.*{reason}") as caught:
        await training.party("north", **settings)
    assert "north.token" in str(caught.value)


async def test_a_party_that_the_coordinator_refuses_is_not_connected(training):
    with pytest.raises(OSError, match="hung up"):
        await training.party("north", authority=OTHER)


@pytest.mark.long
async def test_a_party_whose_certificate_expires_later_ends_when_the_next_ring_forms(training):
    seconds = 4  # A busy machine needs some of them to connect.
    north = await training.party("north", lifetime=timedelta(seconds=seconds))
    async with training.rendezvous() as rendezvous:
        await asyncio.sleep(seconds)
        with pytest.raises(ConfigError, match=r"expired.*north\.token"):
            await begin(north, rendezvous)


async def test_a_lost_coordinator_is_an_error_that_passes(training):
    links = links_of("north", free_port())
    for _ in range(2):
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.to_thread(links.connect, 5.0)
    await asyncio.to_thread(links.close)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b'{"host": "h", "port": 1}'),
        *(b'{"host": "h", "key": "00", "port": %d}' % port for port in (0, 65536)),
    ],
)
def test_what_is_no_offer_is_refused(data):
    with pytest.raises(ValueError, match=r"offer|JSON|Expect"):
        Offer.decode(data)
