"""Keras metrics that are counted in parts give what Keras gives for the whole."""

from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.spec import Mode
from tests.later import LATER
from tests.specs import with_methods

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.metrics import (
        MetricCall,
        metric_sums,
        require_sums,
        result_of,
    )
    from tests.fitting import by_us, loaded_with

RNG = np.random.default_rng(3)
NUM = 41
PARTS = (7, 1, 33)

BINARY = (RNG.integers(0, 2, (NUM, 1)), RNG.random((NUM, 1)).astype("f4"))
CLASSES = (RNG.integers(0, 3, (NUM,)), RNG.random((NUM, 3)).astype("f4"))
ONE_HOT = (np.eye(3, dtype="f4")[CLASSES[0]], CLASSES[1])
REAL = (RNG.normal(size=(NUM, 2)).astype("f4"), RNG.normal(size=(NUM, 2)).astype("f4"))

CASES = {
    "AUC": (lambda: keras.metrics.AUC(), BINARY),
    "AUC of classes": (lambda: keras.metrics.AUC(multi_label=True, num_labels=3), ONE_HOT),
    "AUC of precision and recall": (lambda: keras.metrics.AUC(curve="PR"), BINARY),
    "BinaryIoU": (lambda: keras.metrics.BinaryIoU(), BINARY),
    "F1Score": (lambda: keras.metrics.F1Score(average="macro"), ONE_HOT),
    "FalseNegatives": (lambda: keras.metrics.FalseNegatives(), BINARY),
    "MeanIoU": (lambda: keras.metrics.MeanIoU(num_classes=3, sparse_y_pred=False), CLASSES),
    "Precision": (lambda: keras.metrics.Precision(), BINARY),
    "PrecisionAtRecall": (lambda: keras.metrics.PrecisionAtRecall(0.5), BINARY),
    "R2Score": (lambda: keras.metrics.R2Score(), REAL),
    "Recall": (lambda: keras.metrics.Recall(), BINARY),
    "RootMeanSquaredError": (lambda: keras.metrics.RootMeanSquaredError(), REAL),
    "SparseCategoricalAccuracy": (lambda: keras.metrics.SparseCategoricalAccuracy(), CLASSES),
    "SpecificityAtSensitivity": (lambda: keras.metrics.SpecificityAtSensitivity(0.5), BINARY),
}


def measured(metric, batch):
    return MetricCall(metric, *map(tf.convert_to_tensor, batch), label="m of mine.py")


@pytest.mark.long(after=1)
@pytest.mark.parametrize("name", CASES)
def test_counted_in_parts_is_as_counted_at_once(name):
    make, whole = CASES[name]
    serial = make()
    serial.update_state(*whole)
    metric, counts, start = make(), 0.0, 0
    for number in PARTS:
        part = [values[start : start + number] for values in whole]
        counts = counts + measured(metric, part).counts().numpy().astype(np.float64)
        start += number
    assert start == NUM
    np.testing.assert_allclose(result_of(metric, counts), serial.result(), rtol=1e-5)


if LATER:

    class Largest(keras.metrics.Metric):
        """What must not be added: the largest output so far."""

        def __init__(self):
            super().__init__()
            self.most = self.add_weight(initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.most.assign(keras.ops.maximum(self.most, keras.ops.max(y_pred)))

        def result(self):
            return self.most

    class BatchMean(Largest):
        """What depends on how the examples are put into batches."""

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.most.assign_add(keras.ops.mean(y_pred))

    class FromOne(Largest):
        """What does not begin at 0, so that parts would count its begin twice."""

        def reset_state(self):
            self.most.assign(1.0)

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.most.assign_add(keras.ops.sum(y_pred))


@pytest.mark.parametrize(
    ("metric", "batch", "message"),
    [
        (lambda: Largest(), BINARY, r"mine\.py .*Largest"),
        (lambda: BatchMean(), BINARY, r"mine\.py .*BatchMean"),
        (lambda: FromOne(), BINARY, r"mine\.py .*FromOne"),
        (lambda: keras.metrics.F1Score(), ONE_HOT, r"F1Score .*\(3,\)"),
        (
            lambda: keras.metrics.MeanIoU(num_classes=2),
            (BINARY[0], REAL[0]),
            r"mine\.py .*\(41, 2\)",
        ),
    ],
    ids=["largest", "by batches", "from one", "several values", "other shapes"],
)
def test_what_does_not_add_up_or_does_not_fit_is_refused(metric, batch, message):
    with pytest.raises(UserCodeError, match=message):
        require_sums(measured(metric(), batch))


def test_a_metric_of_one_number_in_a_row_for_each_example_counts_as_one_without_the_row():
    spec = SimpleNamespace(create_metrics=lambda outputs: {"a": outputs, "b": outputs[:, 0]})
    loaded = SimpleNamespace(spec=spec, label="mine")
    outputs = tf.constant(BINARY[1])
    metrics = metric_sums(loaded, Mode.TRAINING, outputs, None, None, tf.constant(float(NUM)))
    column, row = (metric.sums.numpy() for metric in metrics)
    np.testing.assert_allclose(column, row)
    np.testing.assert_allclose(row, [BINARY[1].sum()], rtol=1e-5)


def trained_with(metric):
    def create_metrics(outputs, labels):
        return {"m": metric(outputs, labels)}

    by_us(with_methods(loaded_with("fitted"), create_metrics=create_metrics))


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("metric", "is_told"),
    [
        (lambda outputs, labels: tf.sqrt(tf.reduce_mean((outputs - labels) ** 2)), True),
        (lambda outputs, labels: tf.reduce_mean(tf.abs(outputs - labels)), False),
        (lambda outputs, labels: tf.abs(outputs - labels), False),
    ],
)
def test_a_metric_that_is_no_mean_over_the_examples_is_told(caplog, metric, is_told):
    trained_with(metric)
    warned = [
        record.getMessage() for record in caplog.records if "metric m of" in record.getMessage()
    ]
    assert len(warned) == is_told


def test_values_of_other_things_than_examples_are_refused():
    with pytest.raises(UserCodeError, match=r"create_metrics .*\(3,\)"):
        trained_with(lambda outputs, labels: tf.reduce_mean(outputs) * tf.ones(3))
