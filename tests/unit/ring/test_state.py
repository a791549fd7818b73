"""Which rank's state a ring takes, and that all of it is taken; the collectives are a stand-in."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.values import Array, StateGroup, checksum
from edl_horovod.frameworks.world import World
from edl_horovod.ring.state import NEVER, Counters, RingState, StateLost, first_difference
from tests.thread_ring import Ring as ThreadRing


@dataclass
class TwoCounters(Counters):
    evaluated_step: int = NEVER


class Ring:
    """The collectives of one rank, mostly the first; the others' counters and values are given."""

    def __init__(self, *others, rank=0, **members):
        self._rank = rank
        self.become(*others, **members)

    def become(self, *others, values=(), breaks_after=None):
        """Have other members from now on."""
        self._others, self._values, self._left = others, values, breaks_after
        self.roots, self.sent, self.differing = [], [], []

    @property
    def world(self):
        return World(rank=self._rank, size=1 + len(self._others), generation=1)

    def gather_rows(self, row, name):
        same = row[:1]  # All have the same variables.
        rows = [
            [*same, newest, steps[0] > NEVER, 0, NEVER, 0, 0, *steps]
            for *steps, newest in self._others
        ]
        if name == "edl.sync.checksums":
            checksums = [checksum(np.asarray(value)) for value in self._values] or row
            rows = [checksums] * len(rows)
        rows.insert(self._rank, row)
        return np.array(rows)

    def checksum(self, variable):
        return checksum(variable.numpy())

    def blank_like(self, variables):
        self._blanks = [Array(variable.numpy() * 0) for variable in variables]
        return self._blanks

    def broadcast(self, variables, root, name):
        originals = self.differing or self.variables
        for variable, original in zip(variables, originals, strict=True):
            if self._left == 0:
                raise CollectiveFailed("a member was lost")
            self._left = self._left and self._left - 1
            self.roots.append(root)
            self.sent.append(original)
            if root != self._rank:
                index = [id(candidate) for candidate in self.variables].index(id(original))
                variable.assign(self._values[index])


def state_of(ring, values, counters, **settings):
    ring.variables = [Array(value) for value in values]
    names = map(str, range(len(values)))
    return RingState(dict(zip(names, ring.variables, strict=True)), counters, ring, **settings)


def values_of(state):
    return [variable.numpy().tolist() for variable in state.variables.values()]


OURS = [[0.0, 0.0], [0.0]]
THEIRS = [[1.0, 2.0], [3.0]]


@pytest.mark.parametrize(
    ("others", "root", "step"),
    [
        ([[3, -1, -1], [9, -1, -1]], 2, 9),
        ([[7, 2, -1], [7, 3, -1]], 2, 7),
        ([[7, 3, -1], [7, 3, -1]], 1, 7),
        ([[-1, -1, -1]], 0, 5),
    ],
)
def test_the_most_advanced_rank_gives_its_state_and_of_equal_ones_the_first(others, root, step):
    ring = Ring(*others, values=THEIRS)
    state = state_of(ring, OURS, TwoCounters(step=5))
    state.sync(ring.world)
    assert set(ring.roots) == {root}
    assert state.step == step
    assert values_of(state) == (THEIRS if root else OURS)


@pytest.mark.parametrize(("step", "values"), [(NEVER, []), (NEVER, OURS), (8, OURS)])
def test_ranks_that_have_the_same_copy_nothing_and_newcomers_begin_at_step_0(step, values):
    ring = Ring([step, -1], values=values)
    state = state_of(ring, values, Counters(step=step))
    state.sync(ring.world)
    assert not ring.sent
    assert state.step == max(0, step)


def test_of_ranks_that_did_the_same_steps_only_what_differs_is_copied():
    ring = Ring([8, 9, -1], values=[OURS[0], [3.0]])
    counters = TwoCounters(step=8)
    state = state_of(ring, OURS, counters)
    ring.differing = ring.variables[1:]
    state.sync(ring.world)
    assert [variable is ring.variables[1] for variable in ring.sent] == [True]
    assert values_of(state) == [OURS[0], [3.0]]
    assert counters.evaluated_step == 9


def broken_sync(ring, counters):
    state = state_of(ring, OURS, counters)
    with pytest.raises(CollectiveFailed):
        state.sync(ring.world)
    return ring, state


def test_a_rank_without_steps_has_no_state_where_a_sync_breaks():
    _, state = broken_sync(Ring([7, -1], values=THEIRS, breaks_after=1), Counters())
    assert values_of(state) not in (OURS, THEIRS)
    assert state.step < NEVER
    with pytest.raises(StateLost):
        state.begin_alone()


def test_a_broken_rank_takes_the_values_of_one_that_begins():
    ring, state = broken_sync(Ring([7, -1], values=THEIRS, breaks_after=1), Counters())
    ring.become([NEVER, -1], values=THEIRS)
    state.sync(ring.world)
    assert values_of(state) == THEIRS
    assert state.step == 0


@pytest.mark.parametrize(
    ("others", "step"),
    [
        pytest.param([[6, -1], [NEVER, -1]], 5, id="a step behind"),
        pytest.param([[NEVER, -1]], NEVER, id="a job's first ring"),
    ],
)
def test_what_may_be_the_last_of_its_kind_outlives_a_broken_sync(others, step):
    ring = Ring(*others, values=THEIRS, breaks_after=1, rank=1)
    _, state = broken_sync(ring, Counters(step=step))
    assert ring.roots == [0]
    assert values_of(state) == OURS
    assert state.step == step


@pytest.mark.parametrize(
    ("step", "of_other", "is_streaming"), [(5, NEVER, True), (NEVER, NEVER - 1, False)]
)
def test_a_large_state_is_streamed_unless_it_is_the_one_a_job_begins_with(
    step, of_other, is_streaming
):
    ring = Ring([of_other, NEVER, NEVER])
    state = state_of(
        ring,
        [np.zeros(4 << 20), [0.0]],
        TwoCounters(step=step),
        groups=[StateGroup(("0",))],
        join_share=0.25,
    )
    ring.differing = ring.variables[1:] if is_streaming else ring.variables
    state.sync(ring.world, may_stream=True)
    assert state.is_streaming == is_streaming


class Saved:
    step = 12

    def newest_step(self):
        return self.step

    def load(self, after):
        return {"step": self.step, "evaluated_step": 10} if after < self.step else None


@pytest.mark.parametrize(("step", "synced"), [(5, (12, 10)), (13, (13, NEVER))])
def test_what_is_saved_is_taken_where_it_is_ahead_of_all_ranks(step, synced):
    counters = TwoCounters(step=step)
    ring = Ring([7, 3, 12])
    RingState({}, counters, ring, durable=Saved()).sync(ring.world)
    assert (counters.step, counters.evaluated_step) == synced


def test_what_was_read_from_a_checkpoint_is_read_again_where_a_sync_breaks():
    ring = Ring([20, -1, 12], values=THEIRS, breaks_after=1)
    state = state_of(ring, OURS, TwoCounters(), durable=Saved())
    state.recover()
    with pytest.raises(CollectiveFailed):
        state.sync(ring.world)
    assert state.step < NEVER
    state.begin_alone()
    assert state.step == 12


def test_a_digest_tells_values_apart():
    def digest(*values):
        return RingState({"x": Array(values)}, Counters(), Ring()).digest()

    assert digest(1.0, 2.0) == digest(1.0, 2.0) != digest(2.0, 1.0)


LONG = "layer/" * 60


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([["a", "b"], ["a", "b"], ["a", "b"]], None),
        ([["a", "b"], ["a", "b"], ["a", "c"]], (["b", "b", "c"], [2])),
        ([["a"], ["a", "b"], ["a"]], (["none", "b", "none"], [1])),
        ([["a"], ["a", "none"], ["a"]], (["none", "none", "none"], [1])),
        ([[f"{LONG}a"], [f"{LONG}b"], [f"{LONG}a"]], ([LONG[:256]] * 3, [1])),
        ([["a\n", "b"], ["a", "\nb"], ["a\n", "b"]], (["a", "a", "a"], [1])),
    ],
)
def test_the_first_text_that_differs_is_found(texts, expected):
    ring = ThreadRing(3)
    with ThreadPoolExecutor(3) as pool:
        differences = list(pool.map(lambda at: first_difference(ring.of(at), texts[at]), range(3)))
    assert differences == [expected] * 3


def test_models_whose_variables_differ_only_at_the_end_of_long_names_are_refused():
    ring = ThreadRing(2)

    def sync(at):
        state = RingState({f"{LONG}{'ab'[at]}": Array([0.0])}, Counters(), ring.of(at))
        with pytest.raises(UserCodeError, match=LONG[:100]):
            state.sync(World(rank=at, size=2, generation=1))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sync, range(2)))


def test_a_checksum_that_wraps_around_is_a_sum_modulo_2_to_the_64():
    # Warnings are errors in tests: NumPy would warn of the overflow of two numbers.
    checksums = {checksum(np.full(size, 255, np.uint8)) for size in (8191, 8192, 8193, 100_000)}
    assert len(checksums) == 4
    assert all(0 <= number < 1 << 63 for number in checksums)
