"""The coordinator of a federated training: who may join, and what becomes of one that fails."""

import pytest

from edl_horovod.coordinator import tokens
from edl_horovod.coordinator.wire import secret_of_party
from edl_horovod.errors import ConfigError
from tests.unit.coordinator.conftest import SECRET

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


async def test_nobody_joins_with_the_token_of_another_party(job):
    members = await joined(job, "north", "south")
    liar = await fake(job, "west", of="north").connect()
    await job.until(lambda: not liar.is_connected)
    assert liar.heard == []
    assert all(member.is_connected for member in members)


async def test_no_party_calls_under_the_incarnation_of_another(job):
    north, south = await joined(job, "north", "south")
    liar = fake(job, "west")
    liar.name = north.name
    await liar.connect()
    await job.until(lambda: not liar.is_connected)
    assert liar.heard == []
    assert north.is_connected
    assert south.is_connected


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
    assert stop["is_over"]
    assert stop["error"] == "PartyError"
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
    assert any("takes part already" in event.message for event in job.events("log"))


async def test_a_party_that_is_not_in_the_list_is_refused(job):
    await joined(job, "north", "south")
    other = await fake(job, "east").connect()
    await job.until(lambda: "stop" in other.kinds())
    assert "'east'" in stop_of(other)["message"]


async def test_a_member_that_fails_leaves_and_the_others_go_on(job):
    north, south, west = await joined(job, "north", "south", "west")
    west.send("failed", error={"error": "PartyError", "message": "not finite at 'west'"})
    await job.ring(north, south, least_generation=2)
    assert job.result is None
    assert not job.task.done()
    messages = [event.message for event in job.events("worker") if event.state == "failed"]
    assert messages == ["not finite at 'west'"]


def test_a_token_is_private_and_read_as_it_was_written(tmp_path):
    tokens.issue(tmp_path / "tokens", ["north", "south"])
    path = tmp_path / "tokens" / "north.token"
    assert path.stat().st_mode & 0o077 == 0
    token = tokens.read(path)
    assert token.party == "north"
    assert token.secret != tokens.read(tmp_path / "tokens" / "south.token").secret
    tokens.issue(tmp_path / "tokens", ["north", "west"])
    assert tokens.read(path) == token


def test_a_token_says_of_which_training_it_is(tmp_path):
    for job_dir in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        tokens.issue(job_dir, ["north"])
    first, other = (tokens.read(tmp_path / name / "north.token") for name in ("a", "b"))
    assert first.training != other.training
    assert first.training not in first.secret


@pytest.mark.parametrize("text", [None, "", "{}", '{"party": "a", "secret": "zz"}', "[1]"])
def test_what_is_no_token_is_refused(tmp_path, text):
    path = tmp_path / "a.token"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="--party-token"):
        tokens.read(path)
