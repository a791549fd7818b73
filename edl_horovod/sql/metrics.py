"""Metrics of predictions, computed over all rows at once, so that they do not depend on the ring.

The definitions are the same as in scikit-learn, which the tests compare them with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError

__all__ = [
    "CLASS_METRICS",
    "REGRESSION_METRICS",
    "ClassMetrics",
    "MetricRow",
    "RegressionMetrics",
    "probability_metrics",
    "regression_metrics",
    "class_metrics",
]

REGRESSION_METRICS = ("rmse", "mae", "r2", "num_rows")
"""The metrics of a regressor."""
_OVERALL_METRICS = ("accuracy", "auc", "log_loss", "f1_macro", "num_rows")
_METRICS_BY_CLASS = ("precision", "recall", "f1")
CLASS_METRICS = (*_OVERALL_METRICS, *_METRICS_BY_CLASS, "confusion")
"""The metrics of a classifier."""

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class MetricRow:
    """A row of the result of an evaluation."""

    metric: str
    class_name: str | None
    """The class of the metric; in a confusion matrix the true class."""
    predicted: str | None
    """The predicted class, in a confusion matrix."""
    value: float | None
    """None if the rows do not determine it, as AUC with a single class."""


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics:
    """The metrics of predicted numbers."""

    num_rows: int
    rmse: float
    """The root of the mean squared error, in the unit of the label."""
    mae: float
    """The mean absolute error, in the unit of the label."""
    r2: float
    """The share of the label's variance that the predictions explain; 1 at best."""

    def rows(self) -> list[MetricRow]:
        """One row per metric."""
        return [
            MetricRow(name, None, None, float(getattr(self, name))) for name in REGRESSION_METRICS
        ]


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """The metrics of predicted classes."""

    num_rows: int
    classes: tuple[str, ...]
    accuracy: float
    auc: float | None = None
    """The area under the ROC curve: for the last of two classes, else the mean over all classes,
    each against the others. None if the rows lack a class, or without probabilities."""
    log_loss: float | None = None
    """None without probabilities."""
    precision: tuple[float, ...]
    """The precision of each class; 0 if it was never predicted."""
    recall: tuple[float, ...]
    """The recall of each class; 0 if no row has it."""
    f1: tuple[float, ...]
    """The F1 score of each class."""
    confusion: tuple[tuple[int, ...], ...]
    """The number of rows by true class, then by predicted class."""

    @property
    def f1_macro(self) -> float:
        """The mean F1 score of the classes."""
        return float(np.mean(self.f1))

    def rows(self) -> list[MetricRow]:
        """One row per metric: over all classes, of each class, and the confusion matrix."""
        rows = []
        for name in _OVERALL_METRICS:
            value = getattr(self, name)
            rows.append(MetricRow(name, None, None, None if value is None else float(value)))
        for name in _METRICS_BY_CLASS:
            values_of_classes = zip(self.classes, getattr(self, name), strict=True)
            rows += [
                MetricRow(name, class_name, None, value) for class_name, value in values_of_classes
            ]
        for class_name, counts in zip(self.classes, self.confusion, strict=True):
            rows += [
                MetricRow("confusion", class_name, predicted, float(count))
                for predicted, count in zip(self.classes, counts, strict=True)
            ]
        return rows


def regression_metrics(
    labels: NDArray[np.floating], predicted: NDArray[np.floating]
) -> RegressionMetrics:
    """The metrics of predicted numbers.

    Args:
        labels: The true numbers, shape (rows,).
        predicted: The predicted numbers, shape (rows,).

    Raises:
        DataError: There are no rows.
    """
    _require_rows(len(labels))
    truth, predictions = labels.astype(np.float64), predicted.astype(np.float64)
    squared = float(np.square(truth - predictions).sum())
    variance = float(np.square(truth - truth.mean()).sum())
    return RegressionMetrics(
        num_rows=len(truth),
        rmse=float(np.sqrt(squared / len(truth))),
        mae=float(np.abs(truth - predictions).mean()),
        r2=1 - squared / variance if variance else float(squared == 0),
    )


def probability_metrics(
    labels: _Integers, probabilities: NDArray[np.floating], classes: Sequence[object]
) -> ClassMetrics:
    """The metrics of predicted probabilities of classes.

    Args:
        labels: The numbers of the true classes, shape (rows,).
        probabilities: The probability of each class for each row, shape (rows, classes).
        classes: The names of the classes.

    Raises:
        DataError: There are no rows.
    """
    _require_rows(len(labels))
    scores = probabilities.astype(np.float64)
    tiny = np.finfo(np.float64).eps
    likely = scores / scores.sum(axis=1, keepdims=True)
    chosen = np.clip(likely[np.arange(len(labels)), labels], tiny, 1 - tiny)
    return replace(
        class_metrics(labels, scores.argmax(axis=1), classes),
        auc=_auc(labels, scores),
        log_loss=float(-np.log(chosen).mean()),
    )


def class_metrics(
    labels: _Integers, predicted: _Integers, classes: Sequence[object]
) -> ClassMetrics:
    """The metrics of predicted classes without probabilities.

    Args:
        labels: The numbers of the true classes, shape (rows,).
        predicted: The numbers of the predicted classes, shape (rows,).
        classes: The names of the classes.

    Raises:
        DataError: There are no rows.
    """
    _require_rows(len(labels))
    num_classes = len(classes)
    confusion = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    hits = confusion.diagonal().astype(np.float64)
    precision, recall = _shares(hits, confusion.sum(axis=0)), _shares(hits, confusion.sum(axis=1))
    return ClassMetrics(
        num_rows=len(labels),
        classes=tuple(map(str, classes)),
        accuracy=float(hits.sum() / len(labels)),
        precision=tuple(precision.tolist()),
        recall=tuple(recall.tolist()),
        f1=tuple(_shares(2 * precision * recall, precision + recall).tolist()),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def _auc(labels: _Integers, probabilities: _Floats) -> float | None:
    num_classes = probabilities.shape[1]
    classes = [num_classes - 1] if num_classes == 2 else range(num_classes)
    areas = [_area(labels == number, probabilities[:, number]) for number in classes]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if len(known) == len(areas) else None


def _area(is_positive: NDArray[np.bool_], scores: _Floats) -> float | None:
    """How often a positive row scores higher than a negative one; equal scores count half."""
    num_positive = int(is_positive.sum())
    num_negative = len(is_positive) - num_positive
    if not num_positive or not num_negative:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # The mean rank of rows with equal scores, counted from 1.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    total = float(ranks[is_positive].sum())
    return (total - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def _shares(parts: NDArray[np.floating], wholes: NDArray[np.generic]) -> _Floats:
    whole = wholes.astype(np.float64)
    shares: _Floats = np.divide(parts, whole, out=np.zeros(len(whole)), where=whole > 0)
    return shares


def _require_rows(num_rows: int) -> None:
    if not num_rows:
        raise DataError("There are no rows to evaluate on.", hint="Select at least one row.")
