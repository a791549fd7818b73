"""What a model's own `fit` makes of the same examples in the same order."""

import keras
import pytest

from edl_horovod.errors import UserCodeError
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


def test_what_an_optimizer_of_ones_own_raises_is_told_in_one_sentence():
    class Own(keras.optimizers.SGD):
        def build(self, variables):
            raise ValueError("no slots today")

    loaded = loaded_with("fitted")
    loaded.spec.create_optimizer = Own
    with pytest.raises(UserCodeError, match=r"optimizer of FittedSpec.*no slots today"):
        by_us(loaded)
