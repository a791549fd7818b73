"""Weights of examples, features of any kind, and embeddings of ids, as they count in `fit`."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Batch
from tests.later import LATER, later

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.step import KerasStep
    from tests.component.frameworks.keras.fits import assert_trained_as_in_fit, compiled, own_model
    from tests.fitting import (
        BATCH,
        SPEC,
        assert_same_weights,
        by_fit,
        by_us,
        examples,
        loaded_with,
        steps_over,
    )

    WITH_WEIGHTS = (*SPEC, tf.TensorSpec((None,), tf.float32))
    OF_A_DICT = (SPEC[0], {"a": SPEC[1]})


@pytest.mark.long
@pytest.mark.parametrize("is_one_hot", [False, True])
def test_weights_by_class_are_those_of_fit(is_one_hot):
    features, labels = examples()
    classes = (labels > 0).astype(np.float32)
    labels = np.concatenate([1 - classes, classes], 1) if is_one_hot else classes
    kind = "weighted_pair" if is_one_hot else "weighted"
    loaded = loaded_with("own.OwnSpec", kind=kind)
    step, _ = by_us(loaded, data=(features, labels), options=StepOptions(class_weight=[0.5, 5.0]))
    class_weight = {0: 0.5, 1: 5.0}
    assert_trained_as_in_fit(step, own_model(kind), (features, labels), class_weight=class_weight)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (later("WITH_WEIGHTS"), "class_weight is set, too"),
        (later("OF_A_DICT"), "needs one class for each example"),
    ],
)
def test_weights_by_class_that_mean_nothing_are_refused(spec, says):
    loaded = loaded_with("own.SpokenFor", kind="bare")
    with pytest.raises(UserCodeError, match=says):
        KerasStep(loaded, spec, learning_rate=None, options=StepOptions(class_weight=[1.0, 2.0]))


def test_a_loss_that_takes_no_weights_is_refused():
    loaded = loaded_with("fitted")
    with pytest.raises(UserCodeError, match=r"create_loss .*sample_weight"):
        KerasStep(loaded, WITH_WEIGHTS, learning_rate=None)


def test_a_loss_of_the_spec_is_given_the_weights():
    loaded = loaded_with("fitted")
    loaded.spec.create_loss = lambda outputs, labels, sample_weight: tf.reduce_mean(
        tf.square(outputs - labels)[:, 0] * sample_weight
    )
    features, labels = examples()
    data = features, labels, np.abs(features[:, 0])
    step, _ = by_us(loaded, data=data)
    assert_trained_as_in_fit(step, compiled("fitted"), data)


def ragged(rows):
    lengths = np.arange(len(rows)) % 5 + 1
    return tf.RaggedTensor.from_tensor(rows, lengths=lengths)


def sparse(rows):
    return tf.sparse.from_dense(np.where(rows > 0, rows, 0))


@pytest.mark.long
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("make", [ragged, sparse])
def test_ragged_and_sparse_features_train_as_in_fit(make, num_parts):
    features, labels = examples()
    data = tf.data.Dataset.from_tensor_slices((make(features), labels)).batch(BATCH)
    step = KerasStep(
        loaded_with("own.OwnSpec", kind="varying"),
        data.element_spec,
        learning_rate=None,
        options=StepOptions(num_parts=num_parts),
    )
    step.rehearse(Batch(*next(iter(data)), BATCH))
    for batch in data:
        step.step(Batch(*batch, BATCH), wants_change=False, is_alone=True, salt=0)
    model = own_model("varying")
    model(next(iter(data))[0])
    model.fit(data, shuffle=False, verbose=0)
    assert_same_weights(step.model.keras, model)


@pytest.mark.long
def test_rows_of_an_embedding_that_occur_several_times_count_as_their_sum():
    random = np.random.default_rng(3)
    ids = random.integers(0, 5, (BATCH * 10, 3)).astype(np.int32)
    labels = random.normal(size=(BATCH * 10, 1)).astype(np.float32)
    step, _ = by_us(loaded_with("own.OwnSpec", kind="embedding"), data=(ids, labels))

    dense = own_model("embedding")
    dense.optimizer.build(dense.trainable_variables)
    for start in range(0, len(ids), BATCH):
        part = slice(start, start + BATCH)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(dense(ids[part]) - labels[part]))
        gradients = tape.gradient(loss, [variable.value for variable in dense.trainable_variables])
        dense.optimizer.apply(list(map(tf.convert_to_tensor, gradients)), dense.trainable_variables)
    assert_same_weights(step.model.keras, dense)

    # Where this fails, Keras adds the occurrences first, too: say so in docs/reference/keras.md.
    model = own_model("embedding")
    by_fit(model, (ids, labels))
    assert np.abs(model.get_weights()[0] - dense.get_weights()[0]).max() > 1e-3


def rows_of_a_table():
    rows = np.random.default_rng(3).integers(0, 50, (96, 1)).astype(np.int32)
    return rows, rows.astype(np.float32) / 50


def place(variable):
    """Where the values lie; the reading that tells is over when this returns."""
    return variable.value.read_value().numpy().__array_interface__["data"][0]


def test_a_step_writes_rows_into_the_table_and_never_copies_it():
    data = rows_of_a_table()
    step, _ = by_us(loaded_with("embedded"), data=data)
    table = step.model.keras.get_layer("table").embeddings
    # What is read is not kept: the table would be copied before it changes.
    before, values = place(table), table.numpy().copy()
    steps_over(step, data)
    assert place(table) == before
    changed = np.flatnonzero((table.numpy() != values).any(1))
    assert 0 < len(changed) <= 50


def test_rows_of_a_table_are_trained_as_in_fit():
    data = rows_of_a_table()
    step, _ = by_us(loaded_with("embedded"), data=data)
    assert_trained_as_in_fit(step, compiled("embedded"), data)
