"""Metrics are those of scikit-learn."""

import numpy as np
import pytest

from edl_horovod.errors import DataError
from edl_horovod.sql.metrics import (
    CLASS_METRICS,
    REGRESSION_METRICS,
    MetricRow,
    probability_metrics,
    regression_metrics,
)
from tests.later import LATER

if LATER:
    sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_metrics_of_numbers(offset):
    random = np.random.default_rng(0)
    labels = offset + random.normal(size=1000)
    predicted = labels + random.normal(size=1000)
    metrics = regression_metrics(labels, predicted)
    assert metrics.rmse**2 == pytest.approx(sklearn_metrics.mean_squared_error(labels, predicted))
    assert metrics.mae == pytest.approx(sklearn_metrics.mean_absolute_error(labels, predicted))
    assert metrics.r2 == pytest.approx(sklearn_metrics.r2_score(labels, predicted), abs=1e-9)


@pytest.mark.parametrize("predicted", [[2.0, 2.0], [2.0, 3.0]])
def test_labels_that_are_all_the_same(predicted):
    labels, predicted = np.full(2, 2.0), np.array(predicted)
    assert regression_metrics(labels, predicted).r2 == sklearn_metrics.r2_score(labels, predicted)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
@pytest.mark.parametrize("has_ties", [False, True])
def test_metrics_of_classes(num_classes, has_ties):
    random = np.random.default_rng(num_classes)
    labels = random.integers(0, num_classes, 2000)
    raw = random.random((2000, num_classes)) + 0.5 * np.eye(num_classes)[labels]
    if has_ties:
        raw = raw.round(1) + 0.1
    probabilities = raw / raw.sum(axis=1, keepdims=True)
    metrics = probability_metrics(labels, probabilities, [f"c{i}" for i in range(num_classes)])
    predicted = probabilities.argmax(axis=1)
    known = sklearn_metrics.precision_recall_fscore_support(labels, predicted, zero_division=0)
    for name, values in zip(("precision", "recall", "f1"), known, strict=False):
        assert getattr(metrics, name) == pytest.approx(values)
    assert metrics.f1_macro == pytest.approx(
        sklearn_metrics.f1_score(labels, predicted, average="macro")
    )
    assert metrics.accuracy == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    confusion = sklearn_metrics.confusion_matrix(labels, predicted)
    assert np.array_equal(metrics.confusion, confusion)
    scores = probabilities[:, 1] if num_classes == 2 else probabilities
    area = sklearn_metrics.roc_auc_score(labels, scores, multi_class="ovr")
    assert metrics.auc == pytest.approx(area)
    assert metrics.log_loss == pytest.approx(sklearn_metrics.log_loss(labels, probabilities))


def test_a_class_that_no_row_has_leaves_the_area_unsaid():
    probabilities = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]])
    metrics = probability_metrics(np.array([0, 1]), probabilities, ["a", "b", "c"])
    assert metrics.auc is None
    assert (metrics.precision[2], metrics.recall[2], metrics.f1[2]) == (0, 0, 0)


def test_the_confusion_matrix_is_rows_as_well():
    metrics = probability_metrics(
        np.array([0, 1, 1]), np.array([[1, 0], [1, 0], [0, 1.0]]), [False, True]
    )
    rows = [row for row in metrics.rows() if row.metric == "confusion"]
    assert rows == [
        MetricRow("confusion", "False", "False", 1.0),
        MetricRow("confusion", "False", "True", 0.0),
        MetricRow("confusion", "True", "False", 1.0),
        MetricRow("confusion", "True", "True", 1.0),
    ]


def test_the_rows_have_just_the_metrics_that_may_be_asked_for():
    of_two = probability_metrics(np.array([0, 1]), np.eye(2), ["a", "b"]).rows()
    assert tuple(dict.fromkeys(row.metric for row in of_two)) == CLASS_METRICS
    numbers = regression_metrics(np.ones(2), np.zeros(2)).rows()
    assert tuple(row.metric for row in numbers) == REGRESSION_METRICS


def test_without_a_row_there_is_nothing_to_say():
    with pytest.raises(DataError, match="no row"):
        regression_metrics(np.zeros(0), np.zeros(0))
