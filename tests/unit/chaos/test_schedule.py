import pytest

from edl_horovod.chaos import Action, parse, random_schedule
from edl_horovod.errors import ConfigError


def test_a_schedule_is_read_in_the_order_of_its_times():
    schedule = parse("30:remove 20:add  # the night shift\n10:kill:1\n40:stop::5 0.5:coordinator")
    ordered = ["0.5:coordinator", "10:kill:1", "20:add", "30:remove", "40:stop::5"]
    assert [str(action) for action in schedule] == ordered
    assert (schedule[1].slot, schedule[4].slot, schedule[4].seconds) == (1, None, 5.0)


def test_what_is_printed_is_read_as_the_same():
    drawn = random_schedule(seed=3, seconds=100, every=5)
    again = parse(" ".join(map(str, drawn)))
    assert [(a.at_seconds, a.kind) for a in again] == [(a.at_seconds, a.kind) for a in drawn]


@pytest.mark.parametrize(
    "word",
    ["kill", "5:kil", "x:kill", "5:kill:a", "5:kill:1:2", "5:add:1", "-1:kill", "5:stop:1:0"],
)
def test_a_wrong_word_is_named(word):
    with pytest.raises(ConfigError) as error:
        parse(word)
    assert error.value.received == f"'{word}'"


def test_a_misspelt_kind_leads_to_the_right_one():
    with pytest.raises(ConfigError, match="'remove'"):
        parse("5:remov")
    with pytest.raises(ConfigError, match="'stop'"):
        random_schedule(seed=1, seconds=60, every=5, kinds=["kill", "stp"])


def test_a_seed_is_a_schedule():
    first = random_schedule(seed=7, seconds=60, every=5)
    assert first == random_schedule(seed=7, seconds=60, every=5)
    assert first != random_schedule(seed=8, seconds=60, every=5)
    assert len(first) == 12
    assert all(0 < action.at_seconds <= 60 for action in first)
    assert all(0 <= action.pick < 1 for action in first)
    times = [action.at_seconds for action in first]
    assert times == sorted(times)


def test_only_the_kinds_that_are_wanted_are_drawn():
    drawn = random_schedule(seed=1, seconds=500, every=5, kinds=["add", "stop"])
    assert {action.kind for action in drawn} == {"add", "stop"}


@pytest.mark.parametrize(
    ("kinds", "every", "seconds"), [([], 5, 60), (["kill"], 0, 60), (["kill"], 5, 4)]
)
def test_a_schedule_without_an_action_is_refused(kinds, every, seconds):
    with pytest.raises(ConfigError, match="--kinds kill"):
        random_schedule(seed=1, seconds=seconds, every=every, kinds=kinds)


def test_an_action_says_what_it_is():
    assert str(Action(at_seconds=3, kind="kill")) == "3:kill"
    assert str(Action(at_seconds=3, kind="stop", slot=2, seconds=1.5)) == "3:stop:2:1.5"
