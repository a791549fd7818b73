"""Each rank draws random numbers of its own, as for dropout, which a step repeats exactly."""

from pathlib import Path

import numpy as np

from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.jobs import training
from tests.later import LATER
from tests.specs import with_methods

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.framework import FRAMEWORK

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH = 16
if LATER:
    SPEC = ({"x": tf.TensorSpec((None, 4), tf.float32)}, tf.TensorSpec((None, 1), tf.float32))


def model():
    x = keras.Input(shape=(4,), name="x")
    return keras.Model({"x": x}, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(x)))


def test_ranks_drop_different_values_and_a_repeated_step_the_same():
    FRAMEWORK.begin(slot=0, seed=4)
    loaded = load_spec(ZOO, "curve", params={}, plain_models=FRAMEWORK.plain_models)
    step = FRAMEWORK.step(with_methods(loaded, create_model=model), SPEC, training(BATCH))
    ones = {"x": tf.ones((BATCH, 4))}
    batch = Batch(ones, tf.ones((BATCH, 1)), BATCH, None, lambda: np.arange(BATCH))
    before = {name: np.array(part.numpy()) for name, part in step.variables.items()}
    losses = []
    for salt in (0, 1, 5, 0, 1, 5):
        for name, part in step.variables.items():
            part.assign(before[name])
        losses.append(step.step(batch, wants_change=False, is_alone=True, salt=salt).loss)
    assert losses[:3] == losses[3:]
    assert len(set(losses)) == 3
