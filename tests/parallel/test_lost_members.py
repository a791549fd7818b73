"""What the survivors of a ring that breaks in a large collective see: an error, and soon."""

import pytest

from tests.frameworks import FRAMEWORKS, NEEDS_TORCH

NUM_RINGS = 4
SOON_SECONDS = 5.0
"""A third of the ring's time-out."""


@pytest.mark.long
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("kind", "size"), [("sums", 4), ("broadcasts", 3)])
def test_survivors_of_a_broken_collective_get_an_error_soon(run_ranks, framework, kind, size):
    _lose_members(run_ranks, framework, kind, size)


@pytest.mark.long
@NEEDS_TORCH
def test_survivors_that_begin_further_sums_while_their_ring_ends_get_an_error_soon(run_ranks):
    # Horovod's thread and the interpreter's lock used to wait for each other there, for ever.
    _lose_members(run_ranks, "torch", "begun", 3)


def _lose_members(run_ranks, framework, kind, size):
    output, log = run_ranks("lost_member", kind, size, NUM_RINGS, RING_FRAMEWORK=framework)
    lines = [line.split() for line in output.splitlines()]
    ends = [(how, float(seconds)) for how, seconds, _ in lines]
    assert len(ends) == NUM_RINGS * (size - 1), f"{output}\n{log}"
    assert [how for how, _ in ends] == ["error"] * len(ends), f"{ends}\n{log}"
    assert max(seconds for _, seconds in ends) < SOON_SECONDS, f"{ends}\n{log}"
    # What is asked of a broken ring afterwards fails at once, too, and so it is left at once.
    assert max(float(left) for _, _, left in lines) < SOON_SECONDS, f"{output}\n{log}"


@pytest.mark.long
def test_a_rank_that_waits_for_a_lost_member_to_connect_gives_up_when_told_or_by_itself(run_ranks):
    output, log = run_ranks("never_connected")
    *seconds, foreign = output.split()
    assert len(seconds) == 2, log
    assert max(map(float, seconds)) < SOON_SECONDS, log
    assert foreign == "serves", "a server of the same process is no part of the ring"


@pytest.mark.long
@NEEDS_TORCH
@pytest.mark.parametrize(("how", "soon"), [("killed", 2.0), ("stopped", 10.0)])
def test_a_pytorch_step_that_breaks_between_two_buckets_is_repeated_in_the_next_ring(
    run_ranks, how, soon
):
    output, log = run_ranks("broken_steps", how, RING_FRAMEWORK="torch")
    lines = [line.split() for line in output.splitlines()]
    assert [words[-1] for words in lines] == ["right", "right"], f"{output}\n{log}"
    assert max(float(words[0]) for words in lines) < soon, f"{output}\n{log}"
