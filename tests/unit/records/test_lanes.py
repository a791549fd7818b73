"""How many lanes a job has, and which of them a rank owns."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.config.tasks import choose_num_lanes
from edl_horovod.errors import ConfigError
from edl_horovod.records.plan import lanes_of_rank


@dataclass(frozen=True)
class Case:
    """What a user asks for, and the lanes that come of it."""

    batch: int
    lanes: int
    np: int = 1
    max_np: int = 0


@pytest.mark.parametrize(
    "case",
    [
        Case(batch=128, lanes=32),
        Case(batch=96, lanes=32),
        Case(batch=7, lanes=7),
        Case(batch=37, lanes=1),
        Case(batch=4096, np=64, lanes=256),
        Case(batch=4096, np=48, lanes=128),
        Case(batch=4096, max_np=64, lanes=64),
        Case(batch=4096, max_np=1000, lanes=1024),
        Case(batch=100, np=64, lanes=100),
        Case(batch=1009, np=3, lanes=1009),
        Case(batch=32, np=64, lanes=32),
    ],
    ids=str,
)
def test_lanes_suit_the_ring_that_is_asked_for(case):
    lanes = choose_num_lanes(case.batch, 0, num_ranks=case.np, most_ranks=case.max_np)
    assert lanes == case.lanes


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(0, 300))
def test_each_rank_has_a_lane_wherever_the_batch_has_a_record_for_it(batch, np, max_np):
    lanes = choose_num_lanes(batch, 0, num_ranks=np, most_ranks=max_np)
    assert batch % lanes == 0
    assert lanes >= min(batch, max(np, max_np))


def test_what_the_user_sets_is_taken():
    assert choose_num_lanes(128, 4, num_ranks=64, most_ranks=64) == 4


def test_lanes_that_do_not_divide_the_batch_are_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"lanes=5, .*size=64.*1, 2, 4, 8"):
        choose_num_lanes(64, 5, num_ranks=1, most_ranks=0)


@pytest.mark.parametrize(("size", "num_lanes"), [(1, 1), (3, 8), (8, 8), (5, 64)])
def test_lanes_are_dealt_once_and_evenly(size, num_lanes):
    groups = [lanes_of_rank(rank, size, num_lanes) for rank in range(size)]
    assert [lane for group in groups for lane in group] == list(range(num_lanes))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
