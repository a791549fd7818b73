"""BatchNormalization that is synchronised: on one rank what `fit` gives, or refused.

On rings of 2 and 3 it is in `tests/parallel/ranks/keras/test_step.py`.
"""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf

    from tests.fitting import BATCH, STEPS, assert_same_weights, by_fit, by_us, loaded_with

LENGTH, NUM_FEATURES = 5, 3


def positions():
    """Examples of several positions far from zero, the last of which are padding in some."""
    random = np.random.default_rng(4)
    lengths = random.integers(1, LENGTH + 1, size=BATCH * STEPS)
    features = random.normal(size=(BATCH * STEPS, LENGTH, NUM_FEATURES)).astype(np.float32) + 3
    features[np.arange(LENGTH) >= lengths[:, None]] = 0
    return features, features.sum((1, 2))[:, None] / 10


def model_of(norm, *, masks=False):
    x = keras.Input((LENGTH, NUM_FEATURES), name="x")
    hidden = keras.layers.Masking()(x) if masks else x
    hidden = norm(hidden)
    hidden = keras.layers.Dense(4, activation="tanh")(hidden)
    hidden = keras.layers.BatchNormalization(axis=1)(hidden)
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))


def loaded_as(make_model):
    loaded = loaded_with("fitted")
    loaded.spec.create_model = make_model
    return loaded


@pytest.mark.long
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"synchronized": True}, {"renorm": True, "scale": False, "center": False}]
)
def test_on_one_rank_it_is_that_of_fit(settings, masks):
    def make_model():
        return model_of(keras.layers.BatchNormalization(**settings), masks=masks)

    options = StepOptions(sums_batch_norm=True)
    step, _ = by_us(loaded_as(make_model), data=positions(), options=options)
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile("sgd", "mse")
    by_fit(model, positions())
    for ours, expected in zip(step.model.keras.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_layers_and_their_files_stay_what_they_are(tmp_path):
    loaded = loaded_as(lambda: model_of(keras.layers.BatchNormalization(synchronized=True)))
    step, _ = by_us(loaded, data=positions(), options=StepOptions(sums_batch_norm=True))
    step.model.save(tmp_path)
    model = keras.models.load_model(tmp_path / "model.keras")
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert [norm.synchronized for norm in norms] == [True, False]
    assert_same_weights(model, step.model.keras)


if LATER:

    class InALoop(keras.layers.Layer):
        """Calls a layer as often as there are positions."""

        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization(synchronized=True)

        def build(self, shape):
            self.norm.build((None, shape[-1]))

        def call(self, x, training=None):
            step = tf.while_loop(
                lambda place, _: place < tf.shape(x)[1],
                lambda place, total: (place + 1, total + self.norm(x[:, place], training=training)),
                (0, tf.zeros_like(x[:, 0])),
            )
            return step[1][:, tf.newaxis] + x


@pytest.mark.parametrize(
    ("layer", "num_parts", "message"),
    [
        (lambda: keras.layers.BatchNormalization(synchronized=True), 2, "accumulate_steps=1"),
        (later("InALoop"), 1, r"normalization.*loop"),
    ],
)
def test_parts_of_a_step_and_a_layer_in_a_loop_are_refused(layer, num_parts, message):
    options = StepOptions(num_parts=num_parts)
    with pytest.raises(UserCodeError, match=message):
        by_us(loaded_as(lambda: model_of(layer())), data=positions(), options=options)
