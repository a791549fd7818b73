"""Who is in the next ring: rules that hold for all hosts, workers and rings."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl_horovod.coordinator.decide import Candidate, assign_ranks, choose_members
from tests.unit.coordinator.conftest import RING

HOSTS = ["a", "b", "c"]

few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def situations(draw):
    places = draw(
        st.lists(st.tuples(st.sampled_from(HOSTS), st.integers(0, 3)), min_size=0, max_size=10)
    )
    orders = draw(st.permutations(range(len(places))))
    candidates = [
        Candidate(worker=f"w{order}", host=host, slot=slot, order=order)
        for (host, slot), order in zip(places, orders, strict=True)
    ]
    wanted = draw(st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 4)))
    # No two members ever share a slot: the rings before came from the same function.
    members, taken = [], set()
    for candidate in candidates:
        if draw(st.booleans()) and (candidate.host, candidate.slot) not in taken:
            taken.add((candidate.host, candidate.slot))
            members.append(candidate.worker)
    return candidates, wanted, members, draw(st.integers(0, 8))


def in_situations(*others):
    """Run a test in many situations, and with what some other strategies draw."""
    return lambda test: few(given(situations(), *others)(test))


def chosen(situation):
    candidates, wanted, current, most = situation[:4]
    spares = situation[4] if len(situation) > 4 else 0
    by_name = {c.worker: c for c in candidates}
    names = choose_members(candidates, wanted, current, most, spares=spares)
    return [by_name[name] for name in names]


@in_situations()
def test_members_stay_before_newcomers_come(situation):
    candidates, wanted, current, _ = situation
    names = {member.worker for member in chosen(situation)}
    could_stay = {
        c.worker for c in candidates if c.worker in current and c.slot < wanted.get(c.host, 0)
    }
    if names - could_stay:
        assert could_stay <= names


@in_situations()
def test_the_ring_is_as_large_as_it_may_be_and_has_nobody_twice(situation):
    candidates, wanted, _, most = situation
    slots = {(c.host, c.slot) for c in candidates if c.slot < wanted.get(c.host, 0)}
    members = chosen(situation)
    assert len(members) == min(most, len(slots))
    assert len({member.worker for member in members}) == len(members)


@in_situations()
def test_rank_0_is_the_oldest_member_of_the_host_with_the_oldest_member(situation):
    members = chosen(situation)
    if members:
        assert members[0] == min(members, key=lambda member: member.order)


@in_situations(st.randoms())
def test_the_answer_does_not_depend_on_the_order_of_the_question(situation, random):
    candidates, wanted, current, most = situation
    shuffled = random.sample(candidates, len(candidates))
    again = random.sample(current, len(current))
    assert choose_members(shuffled, wanted, again, most) == choose_members(*situation)


@in_situations()
def test_asking_again_changes_nothing(situation):
    candidates, wanted, _, most = situation
    members = choose_members(*situation)
    assert choose_members(candidates, wanted, members, most) == members


@in_situations()
def test_ranks_are_a_permutation_and_the_ranks_of_a_host_are_neighbours(situation):
    members = chosen(situation)
    places = assign_ranks(members, **RING)
    assert [place.rank for place in places] == list(range(len(members)))
    assert [place.worker for place in places] == [member.worker for member in members]
    assert all(place.size == len(members) for place in places)
    hosts = [member.host for member in members]
    changes = sum(a != b for a, b in itertools.pairwise(hosts))
    assert changes == max(0, len(set(hosts)) - 1)


@in_situations()
def test_local_and_cross_ranks_number_the_neighbours_and_their_counterparts(situation):
    members = chosen(situation)
    places = dict(zip((m.worker for m in members), assign_ranks(members, **RING), strict=True))
    for host in HOSTS:
        local = [places[m.worker] for m in members if m.host == host]
        assert [place.local_rank for place in local] == list(range(len(local)))
        assert all(place.local_size == len(local) for place in local)
    for level in range(len(members)):
        across = [p for p in places.values() if p.local_rank == level]
        assert [p.cross_rank for p in across] == list(range(len(across)))
        assert all(p.cross_size == len(across) for p in across)


def candidate(worker, slot, order, host="a"):
    return Candidate(worker=worker, host=host, slot=slot, order=order)


def test_a_successor_waits_while_its_slot_is_held():
    candidates = [candidate("old", 0, 1), candidate("new", 0, 2)]
    assert choose_members(candidates, {"a": 2}, ["old"], 4) == ("old",)
    assert choose_members(candidates, {"a": 2}, ["new"], 4) == ("new",)
    assert choose_members(candidates[1:], {"a": 2}, ["old"], 4) == ("new",)


def test_the_host_of_the_oldest_worker_comes_first():
    candidates = [candidate("b0", 0, 1, "b"), candidate("a0", 0, 2), candidate("b1", 1, 3, "b")]
    assert choose_members(candidates, {"a": 2, "b": 2}, [], 4) == ("b0", "b1", "a0")


@in_situations(st.integers(0, 2))
def test_only_wanted_slots_are_used_each_by_one_and_spares_make_no_more_of_them(situation, spares):
    candidates, wanted, _, most = situation
    members = chosen((*situation, spares))
    for host in HOSTS:
        slots = [member.slot for member in members if member.host == host]
        assert len(slots) <= wanted.get(host, 0)
        assert len(set(slots)) == len(slots)
        assert all(slot < wanted[host] + spares for slot in slots)
        slots_of_candidates = {c.slot for c in candidates if c.host == host}
        usable = [slot for slot in slots_of_candidates if slot < wanted.get(host, 0) + spares]
        if len(members) < most and wanted.get(host, 0):
            assert len(slots) == min(len(usable), wanted[host])


def test_members_stay_where_a_spare_waits():
    candidates = [Candidate(worker=f"w{n}", host="a", slot=n, order=3 - n) for n in range(3)]
    assert choose_members(candidates, {"a": 2}, ["w0", "w1"], 4, spares=1) == ("w1", "w0")
    assert choose_members(candidates[1:], {"a": 2}, ["w0", "w1"], 4, spares=1) == ("w2", "w1")
    assert choose_members(candidates, {"a": 0}, ["w0", "w1"], 4, spares=1) == ()
