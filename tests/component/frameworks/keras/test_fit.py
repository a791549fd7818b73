"""What a model's own `fit` makes of the same examples in the same order."""

import pytest

from tests.fitting import assert_same_weights, by_fit, by_us, loaded_with
from tests.zoo.fitted import OPTIMIZERS


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_an_optimizer_does_what_it_does_in_fit(optimizer):
    step, _ = by_us(loaded_with("fitted", optimizer=optimizer))
    spec = loaded_with("fitted", optimizer=optimizer).spec
    model = spec.create_model()
    model.compile(optimizer=spec.create_optimizer(), loss="mse")
    by_fit(model)
    assert_same_weights(step.model.keras, model)
