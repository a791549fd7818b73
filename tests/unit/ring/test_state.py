"""Which rank's state a ring takes, and that all of it is taken; the collectives are a stand-in."""

from dataclasses import dataclass

import numpy as np
import pytest

from edl_horovod.frameworks.values import Array
from edl_horovod.ring.state import NEVER, Counters, RingState


@dataclass
class TwoCounters(Counters):
    evaluated_step: int = NEVER


class Ring:
    """The collectives of rank 0 among ranks whose rows are given."""

    def __init__(self, *others, values=()):
        self._others, self._values = others, values
        self.root = None

    def gather_rows(self, row, name):
        return np.array([row, *self._others])

    def broadcast(self, variables, root, name):
        self.root = root
        if root:
            for variable, value in zip(variables, self._values, strict=True):
                variable.assign(value)


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
    ring = Ring(*others, values=[[1.0, 2.0]])
    value = Array([0.0, 0.0])
    state = RingState({"x": value}, TwoCounters(step=5), ring)
    state.sync()
    assert ring.root == root
    assert state.step == step
    assert value.numpy().tolist() == ([1.0, 2.0] if root else [0.0, 0.0])


def test_a_ring_of_newcomers_begins_at_step_0():
    state = RingState({}, Counters(), Ring([-1, -1]))
    state.sync()
    assert state.step == 0


class Saved:
    def newest_step(self):
        return 12

    def load(self, after):
        return {"step": 12, "evaluated_step": 10} if after < 12 else None


def test_what_is_saved_is_taken_where_it_is_ahead_of_all_ranks():
    counters = TwoCounters(step=5)
    state = RingState({}, counters, Ring([7, 3, 12]), durable=Saved())
    state.sync()
    assert (counters.step, counters.evaluated_step) == (12, 10)


def test_what_is_saved_is_left_where_a_rank_is_ahead_of_it():
    counters = TwoCounters(step=13)
    RingState({}, counters, Ring([7, 3, 12]), durable=Saved()).sync()
    assert (counters.step, counters.evaluated_step) == (13, NEVER)


def test_a_digest_tells_values_apart():
    def digest(*values):
        return RingState({"x": Array(values)}, Counters(), Ring()).digest()

    assert digest(1.0, 2.0) == digest(1.0, 2.0) != digest(2.0, 1.0)
