"""The coordinator of a federated training: who may join, and what becomes of one that fails."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from edl_horovod.coordinator import tls, tokens
from edl_horovod.coordinator.wire import secret_of_party
from edl_horovod.errors import ConfigError
from tests.unit.coordinator.conftest import SECRET, exchange

PARTIES = ("north", "south", "west")
pytestmark = pytest.mark.job(
    parties=PARTIES, wanted=dict.fromkeys(PARTIES, 1), num_start=2, min_np=2, max_np=None
)


def fake(job, name, *, host=None, of=None):
    """A party that has not called yet, with the token of the party `of`."""
    owner = of or name
    secret = secret_of_party(SECRET, owner)
    return job.fake(0, host or name, secret=secret, party=owner)


async def joined(job, *names):
    workers = [await fake(job, name).connect() for name in names]
    await job.ring(*workers)
    return workers


def stop_of(worker):
    return next(message for message in worker.heard if message["kind"] == "stop")


async def test_parties_form_a_ring_by_tokens_of_their_own(job):
    await joined(job, "north", "south")


@pytest.mark.parametrize("stolen", ["token", "incarnation"])
async def test_nobody_joins_with_the_token_or_the_incarnation_of_another_party(job, stolen):
    members = await joined(job, "north", "south")
    liar = fake(job, "west", of="north" if stolen == "token" else None)
    if stolen == "incarnation":
        liar.name = members[0].name
    await liar.connect()
    await job.until(lambda: not liar.is_connected)
    assert liar.heard == []
    assert all(member.is_connected for member in members)


async def test_only_a_member_of_the_ring_finishes_the_training(job):
    north, _ = await joined(job, "north", "south")
    west = fake(job, "west")
    west.is_ready = False
    await west.connect()
    result = {"steps": 7, "metrics": {}, "output": ""}
    west.send("finished", result=result)
    num_pings = west.num_pings
    await job.until(lambda: west.num_pings > num_pings + 1)
    assert not job.task.done()
    north.send("finished", result=result)
    assert (await job.end()).steps == 7


async def test_a_second_party_of_a_name_is_refused_and_the_first_stays(job):
    north, _ = await joined(job, "north", "south")
    twin = await fake(job, "north").connect()
    await job.until(lambda: "stop" in twin.kinds())
    stop = stop_of(twin)
    assert (stop["is_over"], stop["error"]) == (True, "PartyError")
    assert "'north'" in stop["message"]
    assert "stop" not in north.kinds()
    await job.until(lambda: not twin.is_connected)
    # It may take the place of one that is gone.
    north.hang_up()
    await job.until(lambda: not north.is_connected)
    later = await fake(job, "north").connect()
    await job.until(lambda: later.place is not None)
    # What became of the second one is not told of the party.
    states = [event.state for event in job.events("worker") if event.worker == "north:0"]
    assert states == ["warm", "lost", "warm"]
    assert any("'north' takes" in event.message for event in job.events("log"))


async def test_a_party_that_is_not_in_the_list_is_refused(job):
    await joined(job, "north", "south")
    other = await fake(job, "east").connect()
    await job.until(lambda: "stop" in other.kinds())
    assert "'east'" in stop_of(other)["message"]


async def test_a_member_that_fails_leaves_and_the_others_go_on(job):
    north, south, west = await joined(job, "north", "south", "west")
    west.send("failed", error={"error": "PartyError", "message": "not finite at 'west'"})
    await job.ring(north, south, least_generation=2)
    assert not job.task.done()
    messages = [event.message for event in job.events("worker") if event.state == "failed"]
    assert messages == ["not finite at 'west'"]


AUTHORITY = tls.new_authority()
ENCRYPTED = pytest.mark.job(
    tls=tls.context(
        tls.sign(AUTHORITY, tls.COORDINATOR), tls.MESSAGES, tls.RENDEZVOUS, is_server=True
    )
)


def client(party, protocol=tls.MESSAGES):
    return tls.context(tls.sign(AUTHORITY, tls.holder_of_party(party)), protocol)


def encrypted(job, name, *, certificate_of=None):
    party = client(certificate_of or name)
    return job.fake(0, name, secret=secret_of_party(SECRET, name), party=name, tls=party)


@ENCRYPTED
async def test_parties_with_certificates_form_a_ring_and_meet_at_the_coordinators_port(job):
    north, south = [await encrypted(job, name).connect() for name in ("north", "south")]
    north.ignores = south.ignores = {"form"}
    await job.until(lambda: north.place and south.place)
    token = north.place["rendezvous_token"]
    assert north.place["parties"] == south.place["parties"] == ["north", "south"]

    def meet(name, rank, parts):
        path, context = f"{token}:0/global/{rank}/2", client(name, tls.RENDEZVOUS)
        return exchange(job.port, path, parts, context)

    assert await meet("north", 1, b"lies") == (0, b"")
    answers = asyncio.gather(meet("north", 0, b"of 0"), meet("south", 1, b"of 1"))
    assert await answers == [(200, b"of 1"), (200, b"of 0")]
    north.formed()
    south.formed()
    await job.ring(north, south)


@ENCRYPTED
async def test_nobody_joins_with_the_certificate_of_another_party_or_without(job):
    liar = await encrypted(job, "west", certificate_of="north").connect()
    await job.until(lambda: not liar.is_connected)
    assert liar.heard == []
    reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
    with contextlib.closing(writer):
        writer.write(b"edl 0123456789abcdef0123456789abcdef west\n")
        # What comes back is the alert of TLS, not the greeting.
        assert b"edl" not in await reader.read()


def test_a_token_is_private_and_read_as_it_was_written(tmp_path):
    tokens.issue(tmp_path / "tokens", ["north", "south"])
    path = tmp_path / "tokens" / "north.token"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    token = tokens.read(path)
    assert token.party == "north"
    assert token.secret != tokens.read(tmp_path / "tokens" / "south.token").secret
    tokens.issue(tmp_path / "tokens", ["north", "west"])
    assert tokens.read(path) == token


def test_a_token_says_of_which_training_it_is(tmp_path):
    for name in "aab":
        tokens.issue(tmp_path / name, ["north"])
    first, other = (tokens.read(tmp_path / name / "north.token") for name in "ab")
    assert first.training != other.training
    assert first.authority != other.authority
    assert first.training not in first.secret


def test_a_token_has_a_certificate_of_its_training_unless_there_is_no_encryption(tmp_path):
    tokens.issue(tmp_path, ["north", "south"])
    north, south = (tokens.read(tmp_path / f"{name}.token") for name in ("north", "south"))
    assert north.authority == south.authority
    assert north.key != south.key
    assert north.key.splitlines()[1] not in repr(north)
    assert (tmp_path / tokens.AUTHORITY).stat().st_mode & 0o077 == 0
    tokens.issue(tmp_path, ["north"], is_encrypted=False)
    bare = tokens.read(tmp_path / "north.token")
    assert bare.identity is None
    assert bare.secret == north.secret


def test_an_expired_token_is_named_and_made_again(tmp_path):
    tokens.issue(tmp_path, ["north"], lifetime=timedelta(hours=-1))
    path = tmp_path / "north.token"
    with pytest.raises(ConfigError, match=r"'north' expired.*north\.token"):
        tokens.read(path)
    tokens.issue(tmp_path, ["north"], lifetime=timedelta(days=3))
    soon = tokens.read(path)
    tokens.issue(tmp_path, ["north"])
    assert tls.end_of(tokens.read(path).certificate) > tls.end_of(soon.certificate)


@pytest.mark.parametrize("text", [None, "", "{}", '{"party": "a", "secret": "zz"}', "[1]"])
def test_what_is_no_token_is_refused(tmp_path, text):
    path = tmp_path / "a.token"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="--party-token"):
        tokens.read(path)
