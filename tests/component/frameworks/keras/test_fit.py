"""What a model's own `fit` makes of the same examples in the same order."""

import time

import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.world import World
from tests.later import LATER
from tests.specs import OPTIMIZERS

if LATER:
    import keras

    from tests.component.frameworks.keras.fits import assert_trained_as_in_fit, compiled
    from tests.fitting import by_us, examples, loaded_with, steps_over


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_an_optimizer_does_what_it_does_in_fit(optimizer):
    step, _ = by_us(loaded_with("fitted", optimizer=optimizer))
    assert_trained_as_in_fit(step, compiled("fitted", optimizer=optimizer))


def test_what_an_optimizer_of_ones_own_raises_is_told_in_one_sentence():
    class Own(keras.optimizers.SGD):
        def build(self, variables):
            raise ValueError("no slots today")

    loaded = loaded_with("fitted")
    loaded.spec.create_optimizer = Own
    with pytest.raises(UserCodeError, match=r"FittedSpec.*today"):
        by_us(loaded)


def test_a_step_that_breaks_says_how_long_this_rank_had_waited_for_the_others():
    step, _ = by_us(loaded_with("fitted"))
    began = time.time()
    with pytest.raises(CollectiveFailed):  # There is no ring.
        steps_over(step, examples(1), World(rank=0, size=2, generation=1))
    assert 0 < step.waited_seconds() < time.time() - began
