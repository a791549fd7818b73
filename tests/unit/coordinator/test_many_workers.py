"""What the coordinator decides again and again must not cost the square of its workers."""

from collections import Counter
from typing import ClassVar

import pytest

from edl_horovod.coordinator.decide import Candidate, assign_ranks, choose_members
from edl_horovod.coordinator.workers import Worker
from tests.unit.coordinator.conftest import RING

NUM = 300
FEW_EACH = 20
"""Comparisons of names for each worker; the square would be some hundred."""


class Name(str):
    """A name that counts how often it is compared with another."""

    __slots__ = ()
    compared: ClassVar[Counter[str]] = Counter()

    def __eq__(self, other: object) -> bool:
        Name.compared["=="] += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def named(text: str) -> Name:
    """Never the same object twice: of that Python knows without comparing that it is equal."""
    return Name(text)


@pytest.fixture
def candidates():
    Name.compared.clear()
    return [
        Candidate(worker=named(f"worker-{n}"), host=named(f"host-{n // 2}"), slot=n % 2, order=n)
        for n in range(NUM)
    ]


def test_members_are_chosen_without_comparing_all_with_all(candidates):
    wanted = {named(f"host-{n}"): 2 for n in range(NUM // 2)}
    current = tuple(named(f"worker-{n}") for n in range(NUM))
    chosen = choose_members(candidates, wanted, current, NUM)
    assert len(chosen) == NUM
    assert Name.compared["=="] <= FEW_EACH * NUM


def test_ranks_are_dealt_without_comparing_all_with_all(candidates):
    places = assign_ranks(candidates, **RING)
    assert [place.cross_rank for place in places] == [n // 2 for n in range(NUM)]
    assert Name.compared["=="] <= FEW_EACH * NUM


def test_two_workers_are_not_compared_by_their_state(candidates):
    first, other = (Worker(candidates[0]) for _ in range(2))
    assert first != other
    assert len({first, other}) == 2
