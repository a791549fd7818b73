"""What a model was compiled with, and what it overrides, count as they do in `fit`."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Batch
from tests.later import LATER, later
from tests.specs import with_methods

if LATER:
    import keras
    import tensorflow as tf
    from keras import ops

    from edl_horovod.frameworks.keras.step import KerasStep
    from tests.component.frameworks.keras.fits import assert_trained_as_in_fit, own_model
    from tests.fitting import (
        BATCH,
        SPEC,
        by_us,
        examples,
        loaded_with,
        own_data,
        specs_of,
    )
    from tests.zoo import masked as taggers
    from tests.zoo import own


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    ["weighted", "adding_a_mean", "compiled", "own_loss", "own_metrics", "listed", "named"],
)
def test_a_model_that_brings_its_parts_trains_and_is_measured_as_in_fit(kind):
    data = own_data(kind)
    logged = {}
    loaded = loaded_with("own.OwnSpec", kind=kind)
    loaded.spec.create_callbacks = lambda: [Recorder(logged)]
    step, sums = by_us(loaded, data=data)
    model = own_model(kind)
    logs = assert_trained_as_in_fit(step, model, data)

    callbacks = step.callbacks(num_epochs=1, steps_per_epoch=None, per_step=False)
    for step_sums in sums:
        callbacks.after_step(step_sums, batch=None)
    callbacks.end_epoch(0, {})
    assert logged.keys() == logs.keys()
    for name, value in logs.items():
        np.testing.assert_allclose(logged[name], value, rtol=1e-5, err_msg=name)

    evaluation = step.model.evaluation(specs_of(data))
    total = evaluation.zeros
    for start in range(0, len(data[0]), BATCH):
        part = slice(start, start + BATCH)
        batch = tf.nest.map_structure(lambda array, part=part: tf.constant(array[part]), data)
        total += evaluation.sums(Batch(batch[0], batch[1], BATCH, *batch[2:]))
    weights = {"sample_weight": data[2]} if len(data) > 2 else {}
    expected = model.evaluate(*data[:2], batch_size=BATCH, verbose=0, return_dict=True, **weights)
    ours = evaluation.values(total)
    assert list(ours) == evaluation.names
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "is_warned_of"), [("contrasting", True), ("executed_otherwise", False)]
)
def test_a_loss_of_the_whole_batch_is_warned_of_and_other_ways_to_execute_are_not(
    kind, is_warned_of, caplog
):
    """On one rank both are as in `fit`."""
    step, _ = by_us(loaded_with("own.OwnSpec", kind=kind))
    assert ("depends on" in caplog.text) == is_warned_of
    assert_trained_as_in_fit(step, own_model(kind))


@pytest.mark.long
def test_what_keras_warns_of_when_the_loss_is_traced_is_told(caplog):
    def create_loss(outputs, labels):
        return keras.ops.mean(keras.losses.categorical_crossentropy(labels, outputs))

    loaded = loaded_with("own.OwnSpec", kind="compiled")
    loaded = with_methods(loaded, create_loss=create_loss)
    by_us(loaded)
    assert all(name in caplog.text for name in ("create_loss", "binary_crossentropy"))


if LATER:

    class Recorder(keras.callbacks.Callback):
        """Keeps the logs of an epoch."""

        def __init__(self, logged):
            super().__init__()
            self._logged = logged

        def on_epoch_end(self, epoch, logs=None):
            self._logged.update(logs)


@pytest.mark.parametrize(
    ("model_def", "kind", "says"),
    [
        ("own.OwnSpec", "own_step", "overrides train_step.*compute_loss"),
        ("own.OwnSpec", "summed", "mean over a batch.*sum_over_batch_size"),
        ("own.OwnSpec", "largest", "largest of .*update_state"),
        ("own.OwnSpec", "loose", "loose.*get_metrics_result"),
        ("own.OwnSpec", "bare", "loss.*compile the model"),
        ("own.SpokenFor", "own_loss", "create_loss.*OwnLoss has compute_loss"),
    ],
)
def test_what_a_ring_cannot_do_as_fit_does_is_refused(model_def, kind, says):
    loaded = loaded_with(model_def, kind=kind)
    with pytest.raises(UserCodeError, match=says):
        KerasStep(loaded, SPEC, learning_rate=None)


def masked(outputs, labels):
    """Of examples whose class is not 0."""
    return ops.sum(ops.where(labels != 0, ops.abs(outputs - ops.cast(labels, "float32")), 0.0))


SUMS = {
    "a sum": lambda outputs, labels: ops.sum(ops.abs(outputs - labels)),
    "by a fixed size": lambda outputs, labels: ops.sum((outputs - labels) ** 2) / 16,
    "a masked sum": masked,
    "a sum as a part": lambda outputs, labels: (
        ops.mean(ops.abs(outputs - labels)) + 0.1 * ops.sum(outputs**2)
    ),
    "a loss of Keras": later("keras.losses.MeanSquaredError(reduction='sum').call"),
}


def classes():
    features, labels = examples(num_steps=1)
    return features, (labels > 0).astype(np.int64)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("kind", "create_loss"), SUMS.items(), ids=SUMS)
def test_a_sum_in_a_spec_is_refused(kind, create_loss):
    data = classes() if kind == "a masked sum" else examples(num_steps=1)
    loaded = loaded_with("own.SpokenFor", kind="measured")
    loaded.spec.create_loss = lambda outputs, labels: create_loss(outputs, labels)
    if kind == "a loss of Keras":
        loaded.spec.create_loss = lambda outputs, labels: ops.sum(create_loss(labels, outputs))
    with pytest.raises(UserCodeError, match=r"ops\.mean"):
        by_us(loaded, data=data)
    batch = Batch(*map(tf.constant, data), BATCH)
    step = KerasStep(loaded, specs_of(data), learning_rate=None)
    with pytest.raises(UserCodeError, match=r"ops\.mean"):
        step.rehearse(batch)
    with pytest.raises(UserCodeError, match=r"ops\.mean"):
        step.model.evaluation(specs_of(data)).sums(batch)


@pytest.mark.parametrize("kind", ["partly_summed", "adding_a_sum"])
def test_a_part_that_is_a_sum_is_refused_of_a_model(kind):
    features, labels = examples(num_steps=1)
    data = features, (labels, labels**2) if kind == "partly_summed" else labels
    with pytest.raises(UserCodeError, match=r"ops\.mean"):
        by_us(loaded_with("own.OwnSpec", kind=kind), data=data)


def test_a_loss_by_the_sum_of_weights_or_with_a_penalty_is_no_sum():
    features, labels = examples(num_steps=1)
    loaded = loaded_with("own.SpokenFor", kind="adding_a_mean")
    loaded.spec.create_loss = lambda outputs, labels, sample_weight: (
        ops.sum(sample_weight[:, None] * ops.abs(outputs - labels)) / ops.sum(sample_weight)
    )
    by_us(loaded, data=(features, labels, np.abs(features[:, 0])))


def test_a_test_step_is_refused_in_evaluations():
    loaded = loaded_with("own.OwnSpec", kind="doubling")
    step = KerasStep(loaded_with("own.SpokenFor", kind="doubling"), SPEC, learning_rate=None)
    step.model.keras = own.own_step()
    step.model._loaded = loaded
    with pytest.raises(UserCodeError, match="test_step"):
        step.model.evaluation(SPEC)


@pytest.mark.long
def test_what_the_spec_says_itself_counts_and_what_was_compiled_is_named(caplog):
    step, _ = by_us(loaded_with("own.SpokenFor", kind="own_metrics"))
    assert type(step.optimizer) is keras.optimizers.SGD
    assert all(name in caplog.text for name in ("create_loss", "create_optimizer"))
    model = own_model("own_metrics")
    model.compile(keras.optimizers.SGD(0.1), lambda y, y_pred: tf.abs(y - y_pred))
    assert_trained_as_in_fit(step, model)


def test_metrics_of_a_model_that_was_compiled_without_a_loss_count():
    _, sums = by_us(loaded_with("own.SpokenFor", kind="measured"))
    assert sums[0].metrics.keys() == {"mae"}
    for step_sums in sums:  # The spec's loss is the same number.
        np.testing.assert_allclose(step_sums.metrics["mae"], step_sums.loss, rtol=1e-5)


def test_a_predict_step_of_the_model_predicts():
    loaded = loaded_with("own.SpokenFor", kind="doubling")
    step = KerasStep(loaded, SPEC, learning_rate=None)
    features = examples()[0][:3]
    prediction = step.model.prediction((SPEC[0], None))
    expected = 2.0 * step.model.keras(features)
    np.testing.assert_allclose(prediction.outputs(tf.constant(features)), expected, rtol=1e-6)


def test_the_learning_rate_of_a_job_reaches_a_compiled_optimizer():
    step = KerasStep(loaded_with("own.OwnSpec"), SPEC, learning_rate=0.25)
    assert float(step.optimizer.learning_rate) == 0.25


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("kind", "message"),
    [("two_masks", r"accumulate_steps=1"), ("regularized", "different divisors")],
)
def test_parts_of_a_batch_do_not_know_several_divisors(kind, message):
    data = taggers.data(kind, 8)
    loaded, options = loaded_with("masked.MaskedSpec", kind=kind), StepOptions(num_parts=2)
    with pytest.raises(UserCodeError, match=message):
        KerasStep(loaded, specs_of(data), learning_rate=None, options=options)


def test_a_weight_that_depends_on_the_outputs_is_refused():
    loaded = loaded_with("masked.PairSpec")

    def create_loss(outputs, labels):
        return tf.reduce_sum(outputs), 1.0 + tf.reduce_sum(tf.square(outputs))

    loaded = with_methods(loaded, create_loss=create_loss)
    with pytest.raises(UserCodeError, match=r"depends .*outputs"):
        KerasStep(loaded, specs_of(taggers.data("pair", 8)), learning_rate=None)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["masked", "divided", "two_masks"])
def test_the_loss_of_an_evaluation_divides_as_in_evaluate(kind):
    data = taggers.data(kind, 2 * BATCH)
    loaded = loaded_with("masked.MaskedSpec", kind=kind)
    model = loaded.spec.create_model()
    step = KerasStep(loaded, specs_of(data), learning_rate=None)
    step.model.keras.set_weights(model.get_weights())
    evaluation = step.model.evaluation(specs_of(data))
    batch = tf.nest.map_structure(tf.constant, data)
    whole = evaluation.values(evaluation.sums(Batch(*batch[:2], 2 * BATCH)))["loss"]
    expected = model.evaluate(*data[:2], batch_size=2 * BATCH, verbose=0, return_dict=True)
    assert whole == pytest.approx(expected["loss"], rel=1e-5)
