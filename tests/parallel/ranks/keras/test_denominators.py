"""Losses that divide by masks and weights train on a ring as in Keras' own `fit`."""

import numpy as np
import pytest

from tests.fitting import BATCH, assert_same_weights, by_fit, by_us, loaded_with
from tests.parallel.agreement import assert_same_everywhere
from tests.zoo import masked

NUM_EXAMPLES = 5 * BATCH + 3
SOON = ("ignoring_masked", "divided", "two_masks")
LONG = [pytest.param(k, marks=pytest.mark.long) for k in masked.MODELS if k not in SOON]


@pytest.mark.parametrize("kind", [*SOON, *LONG])
def test_a_loss_with_its_own_divisor_is_that_of_fit(world, kind, caplog):
    data = masked.data(kind, NUM_EXAMPLES)
    step, sums = by_us(loaded_with("masked.MaskedSpec", kind=kind), world, data)
    assert "(sum, weight)" not in caplog.text
    assert_same_everywhere(step.model.keras.get_weights())
    if world.is_leader:
        loaded_with("masked.MaskedSpec")
        model = masked.MODELS[kind]()
        logs = by_fit(model, data)
        assert_same_weights(step.model.keras, model)
        count = sum(of_step.num_examples for of_step in sums)
        loss = sum(of_step.loss * of_step.num_examples for of_step in sums) / count
        np.testing.assert_allclose(loss, logs["loss"], rtol=1e-5)


def test_a_pair_of_sum_and_weight_is_its_quotient_in_fit(world, caplog):
    data = masked.data("pair", NUM_EXAMPLES)
    step, _ = by_us(loaded_with("masked.PairSpec"), world, data)
    assert "(sum, weight)" not in caplog.text
    assert_same_everywhere(step.model.keras.get_weights())
    if world.is_leader:
        loaded_with("masked.PairSpec")
        model = masked.MODELS["divided"]()
        by_fit(model, data)
        assert_same_weights(step.model.keras, model)
