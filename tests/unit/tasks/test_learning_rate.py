"""The linear rule: the ring's size times the rate, after a warm-up, through changes of the ring."""

import pytest

from edl_horovod.tasks.train import LearningRateRule

RISE = {10: 1.0, 11: 1.5, 12: 2.0, 13: 2.5, 14: 3.0, 15: 3.0}
CASES = {
    "it rises in equal parts to the ring's size": (4, [(3, 10, RISE)]),
    "a ring of one begins with the rate as it is": (4, [(1, 0, {0: 1.0, 1: 1.0, 2: 1.0})]),
    "a smaller ring takes its factor at once and a larger one rises from there": (
        4,
        [(4, 0, {}), (3, 10, {10: 3.0, 11: 3.0}), (5, 12, {12: 3.0, 14: 4.0, 16: 5.0})],
    ),
    "a change within the warm-up goes on from the factor that was reached": (
        4,
        [(5, 0, {}), (6, 2, {2: 3.0, 4: 4.5, 6: 6.0}), (2, 4, {4: 2.0})],
    ),
    "without a warm-up it is the ring's size": (0, [(7, 3, {3: 7.0})]),
}


@pytest.mark.parametrize(("warmup_steps", "rings"), CASES.values(), ids=CASES.keys())
def test_the_factor_of_each_step(warmup_steps, rings):
    rule = LearningRateRule(warmup_steps=warmup_steps)
    for size, first_step, factors in rings:
        rule.enter(size, first_step)
        assert {step: rule.factor(step) for step in factors} == factors


def test_a_ring_that_forms_again_with_the_same_size_changes_nothing():
    rule = LearningRateRule(warmup_steps=4)
    rule.enter(3, 0)
    before = rule.variables["learning_rate_rule"].numpy()
    rule.enter(3, 2)
    assert rule.variables["learning_rate_rule"].numpy() is before


def test_another_rank_takes_the_state_over():
    rule, other = LearningRateRule(warmup_steps=4), LearningRateRule(warmup_steps=4)
    rule.enter(3, 10)
    other.variables["learning_rate_rule"].assign(rule.variables["learning_rate_rule"].numpy())
    other.enter(3, 12)
    for step in range(12, 15):
        assert other.factor(step) == rule.factor(step)
