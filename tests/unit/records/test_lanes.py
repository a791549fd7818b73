"""How many lanes a job has, and which of them a rank owns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.config.tasks import choose_num_lanes
from edl_horovod.errors import ConfigError
from edl_horovod.records.plan import lanes_of_rank


@pytest.mark.parametrize(
    ("batch", "num_ranks", "most_ranks", "lanes"),
    [
        (128, 1, 0, 32),
        (96, 1, 0, 32),
        (7, 1, 0, 7),
        (37, 1, 0, 1),
        (4096, 64, 0, 256),
        (4096, 48, 0, 128),
        (4096, 1, 64, 64),
        (4096, 1, 1000, 1024),
        (100, 64, 0, 100),
        (1009, 3, 0, 1009),
        (32, 64, 0, 32),
    ],
)
def test_lanes_suit_the_ring_that_is_asked_for(batch, num_ranks, most_ranks, lanes):
    assert choose_num_lanes(batch, 0, num_ranks=num_ranks, most_ranks=most_ranks) == lanes


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
