"""What a pass changes, draws or reads besides a model's weights: as in `fit`, or refused."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch
from tests.jobs import training
from tests.later import LATER, later
from tests.specs import with_methods

if LATER:
    import keras
    import tensorflow as tf
    from keras import ops

    from edl_horovod.frameworks.keras.framework import FRAMEWORK
    from edl_horovod.frameworks.keras.plain_models import loss_part
    from tests.component.frameworks.keras.fits import assert_trained_as_in_fit
    from tests.fitting import BATCH, SPEC, by_fit, by_us, examples, loaded_with
    from tests.zoo import masked
    from tests.zoo.fitted import NUM_FEATURES


def of_layer(layer, **functions):
    """A loaded spec of a dense layer behind another one."""

    def create_model():
        features = keras.Input((NUM_FEATURES,))
        return keras.Model(features, keras.layers.Dense(1)(layer()(features)))

    return with_methods(loaded_with("fitted"), create_model=create_model, **functions)


if LATER:

    class Noise(keras.layers.Layer):
        """It draws without a generator of its own."""

        def call(self, x, training=False):
            return x + keras.random.normal(ops.shape(x)) if training else x


def still(layer):
    """A model whose weights stay."""
    return of_layer(layer, create_optimizer=lambda: keras.optimizers.SGD(0.0))


def step_of_framework(loaded):
    FRAMEWORK.begin(slot=0, seed=4)
    return FRAMEWORK.step(loaded, SPEC, training(BATCH))


def first_batch():
    features, labels = (tf.constant(array[:BATCH]) for array in examples())
    return Batch(features, labels, BATCH, None, lambda: np.arange(BATCH))


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("make_step", "layer"),
    [
        (lambda loaded: by_us(loaded)[0], later("Noise")),
        (step_of_framework, lambda: keras.layers.Dropout(0.5)),
    ],
)
def test_random_numbers_are_new_in_each_step_and_on_each_rank_and_the_same_when_set_back(
    make_step, layer
):
    step, batch = make_step(still(layer)), first_batch()
    before = {name: np.array(part.numpy()) for name, part in step.variables.items()}

    def losses(*salts):
        for name, part in step.variables.items():
            part.assign(before[name])
        run = [step.step(batch, wants_change=False, is_alone=True, salt=salt) for salt in salts]
        return [sums.loss for sums in run]

    first, of_ranks = losses(0, 0, 5), [losses(salt) for salt in (0, 1, 5)]
    assert len({*first, *of_ranks[1], *of_ranks[2]}) == 5
    assert (losses(0, 0, 5), [losses(salt) for salt in (0, 1, 5)]) == (first, of_ranks)


if LATER:

    class Assigning(keras.layers.Layer):
        """It scales its weight in the forward pass, as spectral normalization does."""

        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            self.scale.assign(self.scale * 0.5)
            return x * self.scale

    COUNT = keras.Variable(0.0, trainable=False, name="count_of_passes")

    class Counting(keras.layers.Layer):
        """It counts in a variable that no model has."""

        def call(self, x):
            COUNT.assign_add(1.0)
            return x / COUNT


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (later("Assigning"), r"assigns variables that are trained.*scale"),
        (
            lambda: keras.layers.SpectralNormalization(keras.layers.Dense(3)),
            r"assigns variables that are trained.*kernel",
        ),
        (later("Counting"), r"variables that the model does not have.*count_of_passes"),
        (lambda: keras.layers.Dense(4, dtype="float8_from_float32"), "float8"),
    ],
)
def test_an_assignment_that_would_be_lost_and_float8_are_refused(layer, message):
    with pytest.raises(UserCodeError, match=message):
        by_us(of_layer(layer))


if LATER:

    class Begun(keras.layers.Layer):
        """It begins with the mean of the first batch that it sees."""

        def build(self, shape):
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
            self.passes = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.mean.assign(ops.where(self.passes > 0, self.mean, ops.mean(x, axis=0)))
            self.passes.assign_add(1.0)
            return x - self.mean


def test_a_layer_that_begins_with_its_first_batch_has_seen_none_before():
    loaded = of_layer(Begun)
    step, _ = by_us(loaded)
    keras.utils.set_random_seed(1)
    model = loaded.spec.create_model()
    model.compile(loaded.spec.create_optimizer(), "mse")
    assert_trained_as_in_fit(step, model)


if LATER:
    WEIGHT = keras.Variable(0.0, trainable=False, name="weight_of_loss")


def test_a_variable_of_a_loss_that_callbacks_set_is_part_of_the_rings_state():
    def create_loss(outputs, labels):
        return ops.mean(ops.square(outputs - labels)) * WEIGHT

    step, _ = by_us(with_methods(loaded_with("fitted"), create_loss=create_loss))
    (others,) = [part for name, part in step.variables.items() if name.startswith("other/")]
    others.assign(7.0)
    assert float(WEIGHT) == 7.0


if LATER:

    class Factor(keras.layers.Layer):
        """It multiplies by a plain attribute."""

        factor = 1.0

        def call(self, x):
            return x * self.factor


def test_a_plain_attribute_has_the_value_that_it_had_when_the_step_was_traced():
    (step, _), batch = by_us(still(Factor)), first_batch()
    before = step.step(batch, wants_change=False, is_alone=True, salt=0).loss
    step.model.keras.layers[1].factor = 5.0
    assert step.step(batch, wants_change=False, is_alone=True, salt=0).loss == before


def test_a_usual_step_has_no_other_variables():
    step, _ = by_us(loaded_with("fitted"))
    assert not [name for name in step.variables if name.startswith("other/")]


@pytest.mark.long
def test_masks_count_in_16_bits_as_well():
    data = masked.data("masked", 3 * BATCH)
    keras.config.set_dtype_policy("mixed_bfloat16")
    step, sums = by_us(loaded_with("masked.MaskedSpec", kind="masked"), data=data)
    loaded_with("masked.MaskedSpec")
    logs = by_fit(masked.MODELS["masked"](), data)
    loss = np.mean([step_sums.loss for step_sums in sums])
    assert loss == pytest.approx(logs["loss"], rel=1e-2)
    assert step.model.keras.dtype_policy.name == "mixed_bfloat16"


def test_a_model_of_float16_has_its_loss_scaled():
    keras.config.set_dtype_policy("mixed_float16")
    step, _ = by_us(loaded_with("fitted"), data=examples(2))
    assert isinstance(step.optimizer, keras.optimizers.LossScaleOptimizer)


LABELS = np.array([0.0, 1.0, 1.0], np.float32)
OUTPUTS = np.array([[0.3], [0.6], [0.2]], np.float32)


@pytest.mark.parametrize("name", ["hinge", "squared_hinge", "poisson", "binary_crossentropy"])
def test_a_loss_by_its_name_is_that_of_compile(name):
    loss = loss_part(name, label="loss")(labels=tf.constant(LABELS), outputs=tf.constant(OUTPUTS))
    keras_loss = keras.losses.get({"class_name": name, "config": {}})
    expected = np.mean(keras_loss(LABELS[:, None], OUTPUTS))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_loss_by_its_name_is_the_sum_over_outputs():
    outputs = {"a": tf.constant(OUTPUTS), "b": tf.constant(2 * OUTPUTS)}
    labels = dict.fromkeys(outputs, tf.constant(LABELS[:, None]))
    loss = loss_part("mse", label="loss")(labels=labels, outputs=outputs)
    squares = [np.mean((factor * OUTPUTS - LABELS[:, None]) ** 2) for factor in (1, 2)]
    assert float(loss) == pytest.approx(sum(squares), rel=1e-5)


def test_a_loss_by_its_name_leaves_out_what_is_masked():
    ids, _, tags = masked.tagger()
    data = masked.data("masked", BATCH)
    outputs = keras.Model(ids, tags)(data[0])
    loss = loss_part("sparse_categorical_crossentropy", label="loss")(
        labels=tf.constant(data[1]), outputs=outputs
    )
    losses = keras.losses.sparse_categorical_crossentropy(data[1], outputs).numpy()
    assert float(loss) == pytest.approx(losses[data[0] != 0].mean(), rel=1e-5)


def test_a_function_of_evaluations_in_a_lambda_callback_is_refused():
    callback = keras.callbacks.LambdaCallback(on_test_end=lambda logs: None)
    step, _ = by_us(with_methods(loaded_with("fitted"), create_callbacks=lambda: [callback]))
    with pytest.raises(UserCodeError, match="for evaluations"):
        step.callbacks(num_epochs=1, steps_per_epoch=None, per_step=False)
