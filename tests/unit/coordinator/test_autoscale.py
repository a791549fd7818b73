"""The policy on curves: what a ring of each size does, and what the cluster gives, over time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from edl_horovod.coordinator.autoscale import RETRY_SECONDS, Autoscale, efficiency

MEASURED = {1: 4210.0, 2: 7905.0, 3: 8240.0, 4: 8118.0, 5: 7902.0, 6: 7640.0}
"""Records/s of an example of ours on 2 cores: more ranks than cores bring nothing."""


@dataclass
class Run:
    """A job under the policy, one sample a second."""

    curve: Callable[[int, int], float]
    """Records/s of a size at a second."""
    offered: Callable[[int], int]
    """Workers that the cluster gives at a second."""
    policy: Autoscale
    noise: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def seconds(self, number: int) -> "Run":
        random.seed(7)
        for second in range(len(self.sizes), len(self.sizes) + number):
            size = min(self.policy.limit, self.offered(second))
            rate = self.curve(size, second) * random.gauss(1.0, self.noise)
            self.policy.note(size, rate, float(second))
            self.sizes.append(size)
        return self

    @property
    def num_changes(self) -> int:
        return sum(a != b for a, b in zip(self.sizes, self.sizes[1:], strict=False))


def run(curve, *, offered=lambda _second: 32, start=1, min_np=1, max_np=32, noise=0.0, bound=0.5):
    policy = Autoscale(min_np=min_np, max_np=max_np, start=start, bound=bound)
    return Run(lambda size, _second: curve(size), offered, policy, noise)


def linear(size: int) -> float:
    return 1000.0 * size


def saturating(size: int) -> float:
    """Half of what a rank brings is gone at some 6 ranks: size / (1 + size / 13)."""
    return 1000.0 * size / (1 + size / 13)


def capped(size: int) -> float:
    """As if the data came over one link."""
    return 1000.0 * min(size, 6)


def best(curve, bound=0.5) -> int:
    """The largest size whose last rank pays."""
    sizes = range(2, 33)
    pays = [n for n in sizes if efficiency(n - 1, curve(n - 1), n, curve(n)) >= bound]
    return max(pays, default=1)


def test_efficiency_is_that_of_an_added_rank():
    assert efficiency(2, 200.0, 4, 400.0) == 1.0
    assert efficiency(2, 200.0, 4, 300.0) == 0.5
    assert efficiency(2, 200.0, 3, 200.0) == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_a_linear_job_takes_all_that_the_cluster_gives(noise):
    job = run(linear, noise=noise).seconds(500)
    assert job.sizes[-1] == 32
    assert job.sizes == sorted(job.sizes)


def test_a_linear_job_grows_when_the_cluster_gives_more():
    job = run(linear, offered=lambda second: 4 if second < 200 else 10).seconds(400)
    assert job.sizes[199] == 4
    assert job.sizes[-1] == 10


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_a_capped_job_stops_growing_where_it_is_capped(noise):
    job = run(capped, noise=noise).seconds(500)
    assert 6 <= job.sizes[-1] <= 8
    assert job.num_changes <= 8
    assert len(set(job.sizes[300:])) == 1


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_saturating_job_stops_near_where_an_added_rank_no_longer_pays(noise):
    job = run(saturating, noise=noise).seconds(500)
    assert abs(job.sizes[-1] - best(saturating)) <= 2
    assert len(set(job.sizes[300:])) == 1


def test_a_measured_curve_stays_at_the_cores_of_the_machine():
    job = run(MEASURED.__getitem__, offered=lambda _second: 6, noise=0.03).seconds(300)
    assert job.sizes[-1] == 2
    assert job.num_changes <= 3


def test_a_ring_that_began_too_large_stays_until_something_changes():
    # Nothing smaller is known, and trying it would cost what it may not bring.
    assert run(capped, start=10, max_np=10).seconds(300).num_changes == 0


def test_a_job_that_slows_down_gives_ranks_back():
    job = run(linear)
    job.curve = lambda size, second: linear(size) if second < 300 else capped(min(size, 3))
    job.seconds(900)
    assert job.sizes[299] == 32
    assert job.sizes[-1] <= 4
    assert len(set(job.sizes[-200:])) == 1


def test_a_job_that_is_slower_all_over_keeps_its_ring():
    job = run(linear, max_np=8)
    job.curve = lambda size, second: linear(size) * (1.0 if second < 200 else 0.4)
    job.seconds(500)
    assert job.sizes[-1] == 8
    assert job.num_changes <= 7  # Five up to 8, one look at a smaller ring, and back.


def test_what_did_not_pay_is_tried_again_after_a_while_and_seldom():
    job = run(capped).seconds(int(RETRY_SECONDS * 8))
    settled = [s for s in job.sizes[200:] if s == job.sizes[199]]
    assert len(settled) > 0.9 * len(job.sizes[200:])
    assert job.num_changes <= 30


def test_a_job_that_gets_faster_again_grows_again():
    job = run(linear, max_np=12)
    job.curve = lambda size, second: 1000.0 * min(size, 3 if second < 300 else 12)
    job.seconds(int(RETRY_SECONDS) + 400)
    assert job.sizes[299] <= 4
    assert job.sizes[-1] == 12


@pytest.mark.parametrize("curve", [linear, capped, saturating])
@pytest.mark.parametrize("seed", range(5))
def test_the_ring_stays_within_its_bounds_whatever_the_cluster_gives(curve, seed):
    gives = random.Random(seed).choices(range(2, 40), k=60)
    job = run(curve, offered=lambda s: gives[s // 20], start=4, min_np=2, max_np=24, noise=0.1)
    job.seconds(1200)
    assert all(2 <= size <= 24 for size in job.sizes)
    assert 2 <= job.policy.limit <= 24


def test_nothing_follows_from_few_samples():
    policy = Autoscale(min_np=1, max_np=8, start=2, bound=0.5)
    assert all(policy.note(2, 100.0, float(second)) is None for second in range(5))
    assert policy.note(2, 100.0, 5.0) is not None


def test_a_decision_says_why():
    policy = Autoscale(min_np=1, max_np=2, start=1, bound=0.5)
    decisions = [policy.note(min(policy.limit, 2), 100.0, float(s)) for s in range(40)]
    grows, shrinks = [decision.reason for decision in decisions if decision]
    assert "up to 2" in grows
    assert all(text in shrinks for text in ("from 1 to 2", " 0%"))
