"""The linear rule: the ring's size times the rate, after a warm-up, through changes of the ring."""

import pytest

from edl_horovod.tasks.train import LearningRateRule


def factors(rule, steps):
    return [rule.factor(step) for step in steps]


def test_the_factor_rises_in_equal_parts_to_the_rings_size():
    rule = LearningRateRule(warmup_steps=4)
    rule.enter(3, 10)
    assert factors(rule, range(10, 16)) == [1.0, 1.5, 2.0, 2.5, 3.0, 3.0]


def test_a_ring_of_one_begins_with_the_rate_as_it_is():
    rule = LearningRateRule(warmup_steps=4)
    rule.enter(1, 0)
    assert factors(rule, range(3)) == [1.0, 1.0, 1.0]


def test_a_smaller_ring_takes_its_factor_at_once_and_a_larger_one_rises_from_there():
    rule = LearningRateRule(warmup_steps=4)
    rule.enter(4, 0)
    rule.enter(3, 10)
    assert factors(rule, (10, 11)) == [3.0, 3.0]
    rule.enter(5, 12)
    assert factors(rule, (12, 14, 16)) == [3.0, 4.0, 5.0]


def test_a_change_amid_the_warm_up_goes_on_from_the_factor_that_was_reached():
    rule = LearningRateRule(warmup_steps=4)
    rule.enter(5, 0)
    rule.enter(6, 2)
    assert factors(rule, (2, 4, 6)) == [3.0, 4.5, 6.0]
    rule.enter(2, 4)
    assert rule.factor(4) == 2.0


def test_a_ring_that_forms_again_with_the_same_size_changes_nothing():
    rule = LearningRateRule(warmup_steps=4)
    rule.enter(3, 0)
    before = rule.variables["learning_rate_rule"].numpy()
    rule.enter(3, 2)
    assert rule.variables["learning_rate_rule"].numpy() is before


def test_without_a_warm_up_the_factor_is_the_rings_size():
    rule = LearningRateRule(warmup_steps=0)
    rule.enter(7, 3)
    assert rule.factor(3) == pytest.approx(7.0)


def test_another_rank_takes_the_state_over():
    rule, other = LearningRateRule(warmup_steps=4), LearningRateRule(warmup_steps=4)
    rule.enter(3, 10)
    other.variables["learning_rate_rule"].assign(rule.variables["learning_rate_rule"].numpy())
    other.enter(3, 12)
    assert factors(other, range(12, 15)) == factors(rule, range(12, 15))
