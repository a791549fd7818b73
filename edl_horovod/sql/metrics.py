"""How good predictions are, over all rows at once: whatever ring made them, the numbers are exact.

The definitions are those of scikit-learn, against which the tests hold them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError

__all__ = [
    "METRICS_OF_CLASSES",
    "METRICS_OF_NUMBERS",
    "ClassMetrics",
    "MetricRow",
    "RegressionMetrics",
    "of_classes",
    "of_numbers",
    "of_predicted_classes",
]

METRICS_OF_NUMBERS = ("rmse", "mae", "r2", "num_rows")
"""The metrics of a regressor."""
_OF_ALL_CLASSES = ("accuracy", "auc", "log_loss", "f1_macro", "num_rows")
_OF_EACH_CLASS = ("precision", "recall", "f1")
METRICS_OF_CLASSES = (*_OF_ALL_CLASSES, *_OF_EACH_CLASS, "confusion")
"""The metrics of a classifier."""

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class MetricRow:
    """One row of the table that an evaluation gives."""

    metric: str
    class_name: str | None
    """The class that it is about; of a confusion matrix the one that the rows have."""
    predicted: str | None
    """Of a confusion matrix the class that was predicted."""
    value: float | None
    """None where the rows do not say it, as an area under a curve of one class."""


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics:
    """Of predicted numbers."""

    num_rows: int
    rmse: float
    """The root of the mean squared error, in the unit of the label."""
    mae: float
    """The mean absolute error, in the unit of the label."""
    r2: float
    """The share of the label's variance that the predictions explain; 1 at best."""

    def rows(self) -> list[MetricRow]:
        """The metrics, one in a row."""
        return [
            MetricRow(name, None, None, float(getattr(self, name))) for name in METRICS_OF_NUMBERS
        ]


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """Of predicted classes."""

    num_rows: int
    classes: tuple[str, ...]
    accuracy: float
    auc: float | None = None
    """The area under the ROC curve: of the last of two classes, else the mean over all classes,
    each against the others. None where the rows lack a class, or there are no probabilities."""
    log_loss: float | None = None
    """None without probabilities."""
    precision: tuple[float, ...]
    """Of each class; 0 where none was predicted."""
    recall: tuple[float, ...]
    """Of each class; 0 where the rows have none of it."""
    f1: tuple[float, ...]
    """Of each class."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows by the class that they have, and then by the one that was predicted."""

    @property
    def f1_macro(self) -> float:
        """The mean of the classes' F1."""
        return float(np.mean(self.f1))

    def rows(self) -> list[MetricRow]:
        """The metrics, one in a row: of all classes, of each class, and the confusion matrix."""
        found = []
        for name in _OF_ALL_CLASSES:
            value = getattr(self, name)
            found.append(MetricRow(name, None, None, None if value is None else float(value)))
        for name in _OF_EACH_CLASS:
            of_classes = zip(self.classes, getattr(self, name), strict=True)
            found += [MetricRow(name, which, None, value) for which, value in of_classes]
        for which, counts in zip(self.classes, self.confusion, strict=True):
            found += [
                MetricRow("confusion", which, predicted, float(count))
                for predicted, count in zip(self.classes, counts, strict=True)
            ]
        return found


def of_numbers(labels: NDArray[np.floating], predicted: NDArray[np.floating]) -> RegressionMetrics:
    """The metrics of predicted numbers.

    Args:
        labels: What the rows have, shape (rows,).
        predicted: What was predicted for them, shape (rows,).

    Raises:
        DataError: There is no row.
    """
    _require_rows(len(labels))
    truth, found = labels.astype(np.float64), predicted.astype(np.float64)
    squared = float(np.square(truth - found).sum())
    variance = float(np.square(truth - truth.mean()).sum())
    return RegressionMetrics(
        num_rows=len(truth),
        rmse=float(np.sqrt(squared / len(truth))),
        mae=float(np.abs(truth - found).mean()),
        r2=1 - squared / variance if variance else float(squared == 0),
    )


def of_classes(
    labels: _Integers, probabilities: NDArray[np.floating], classes: Sequence[object]
) -> ClassMetrics:
    """The metrics of classes of which each has a probability.

    Args:
        labels: The numbers of the classes that the rows have, shape (rows,).
        probabilities: Of each class for each row, shape (rows, classes).
        classes: Their names.

    Raises:
        DataError: There is no row.
    """
    _require_rows(len(labels))
    found = probabilities.astype(np.float64)
    tiny = np.finfo(np.float64).eps
    likely = found / found.sum(axis=1, keepdims=True)
    chosen = np.clip(likely[np.arange(len(labels)), labels], tiny, 1 - tiny)
    return replace(
        of_predicted_classes(labels, found.argmax(axis=1), classes),
        auc=_auc(labels, found),
        log_loss=float(-np.log(chosen).mean()),
    )


def of_predicted_classes(
    labels: _Integers, predicted: _Integers, classes: Sequence[object]
) -> ClassMetrics:
    """The metrics of predicted classes without probabilities.

    Args:
        labels: The numbers of the classes that the rows have, shape (rows,).
        predicted: The same of those that were predicted, shape (rows,).
        classes: Their names.

    Raises:
        DataError: There is no row.
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
    of = [num_classes - 1] if num_classes == 2 else range(num_classes)
    areas = [_area(labels == which, probabilities[:, which]) for which in of]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if len(known) == len(areas) else None


def _area(is_positive: NDArray[np.bool_], scores: _Floats) -> float | None:
    """How likely a positive row has the higher score; equal ones count half."""
    num_positive = int(is_positive.sum())
    num_negative = len(is_positive) - num_positive
    if not num_positive or not num_negative:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # The mean rank of rows with equal scores, counted from 1.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    total = float(ranks[is_positive].sum())
    return (total - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def _shares(parts: NDArray[np.floating], wholes: NDArray[np.generic]) -> _Floats:
    whole = wholes.astype(np.float64)
    shares: _Floats = np.divide(parts, whole, out=np.zeros(len(whole)), where=whole > 0)
    return shares


def _require_rows(num_rows: int) -> None:
    if not num_rows:
        raise DataError("There is no row to evaluate on.", hint="Select some rows.")
