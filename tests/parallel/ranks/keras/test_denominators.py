"""Losses that divide by masks and weights train on a ring as in Keras' own `fit`."""

import numpy as np
import pytest

from tests.fitting import BATCH, assert_same_weights, by_fit, by_us, loaded_with
from tests.parallel.agreement import assert_same_everywhere
from tests.zoo import masked

NUM_EXAMPLES = 5 * BATCH + 3


@pytest.mark.long(after=1)
@pytest.mark.parametrize("kind", ["pair", *masked.MODELS])
def test_a_loss_with_its_own_divisor_is_that_of_fit(world, kind, caplog):
    """That of a pair of sum and weight is their quotient in `fit`."""
    data, spec, params = masked.data(kind, NUM_EXAMPLES), "masked.MaskedSpec", {"kind": kind}
    if kind == "pair":
        spec, params = "masked.PairSpec", {}
    step, sums = by_us(loaded_with(spec, **params), world, data)
    assert "(sum, weight)" not in caplog.text
    assert_same_everywhere(step.model.keras.get_weights())
    if world.is_leader:
        loaded_with(spec)
        model = masked.MODELS["divided" if kind == "pair" else kind]()
        logs = by_fit(model, data)
        assert_same_weights(step.model.keras, model)
        count = sum(of_step.num_examples for of_step in sums)
        loss = sum(of_step.loss * of_step.num_examples for of_step in sums) / count
        np.testing.assert_allclose(loss, logs["loss"], rtol=1e-5)
