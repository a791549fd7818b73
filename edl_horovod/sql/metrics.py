"""Measures of a model from its predictions for all rows at once: they do not depend on the ring.

The definitions of the metrics are the same as in scikit-learn, which the tests compare them with.
The importance of a column is how much worse the model predicts when the column is shuffled. All
shuffled copies of the rows are in one file, so that a single job predicts them all.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, MissingDependency
from edl_horovod.sql.export import parquet_writer
from edl_horovod.sql.statements import Importance

REGRESSION_METRICS = ("rmse", "mae", "r2", "num_rows")
"""The metrics of a regressor."""
_OVERALL_METRICS = ("accuracy", "auc", "log_loss", "f1_macro", "num_rows")
_METRICS_BY_CLASS = ("precision", "recall", "f1")
CLASS_METRICS = (*_OVERALL_METRICS, *_METRICS_BY_CLASS, "confusion")
"""The metrics of a classifier."""

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]
MAX_ROWS = 2_000
"""The number of sampled rows; the job predicts each of them once per column and repeat."""
_ROW_GROUP = 20_000
_PICTURES = (".png", ".svg", ".pdf")


class MetricRow(NamedTuple):
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
            for class_name, value in zip(self.classes, getattr(self, name), strict=True):
                rows.append(MetricRow(name, class_name, None, value))
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


@dataclass(frozen=True, kw_only=True)
class ShuffledRows:
    """A file with sampled rows: unchanged, then once per column and repeat with it shuffled."""

    columns: tuple[str, ...]
    repeats: int
    num_rows: int
    """The number of rows of one copy."""
    rows: NDArray[np.int64]
    """The numbers of the sampled rows in ascending order, shape (num_rows,)."""

    @property
    def num_records(self) -> int:
        """The number of rows of all copies."""
        return self.num_rows * (1 + len(self.columns) * self.repeats)


def write_shuffled(
    shards: Sequence[Path],
    file: Path,
    columns: Sequence[str],
    *,
    repeats: int = 5,
    max_rows: int = MAX_ROWS,
) -> ShuffledRows:
    """Write the copies of sampled rows as one Parquet file.

    Args:
        shards: Parquet files of the rows, in order.
        file: The new file.
        columns: The columns to shuffle, one at a time.
        repeats: The number of times that each is shuffled.
        max_rows: The maximum number of sampled rows.

    Raises:
        DataError: There are fewer than two rows.
        OSError: A file cannot be read or written.
    """
    counts = [pq.read_metadata(shard).num_rows for shard in shards]
    total = sum(counts)
    if total < 2:
        problem = "The importance of columns can only be measured on two rows or more."
        raise DataError(problem, received=f"{total} rows", hint="Select more rows.")
    random = np.random.default_rng(0)  # The same rows and orders for the same SELECT.
    rows = np.sort(random.choice(total, min(total, max_rows), replace=False))
    table = _take_rows(shards, counts, rows)
    with parquet_writer(file, table.schema) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)
        for column in columns:
            index = table.column_names.index(column)
            for _ in range(repeats):
                shuffled = table.column(column).take(pa.array(random.permutation(len(table))))
                copy = table.set_column(index, table.schema.field(index), shuffled)
                writer.write_table(copy, row_group_size=_ROW_GROUP)
    return ShuffledRows(
        columns=tuple(columns), repeats=repeats, num_rows=len(table), rows=rows.astype(np.int64)
    )


def importances(
    shuffled: ShuffledRows,
    predictions: Mapping[str, NDArray[np.generic]],
    score: Callable[[Mapping[str, NDArray[np.generic]]], float],
) -> list[Importance]:
    """Compute the importance of each column, the most important first.

    Args:
        shuffled: The file that was predicted.
        predictions: The model's outputs for all records of the file, by name, shape (records, ...).
        score: Computes how good the outputs for one copy of the rows are; higher is better.
    """
    sizes = {len(values) for values in predictions.values()}
    assert sizes == {shuffled.num_records}, (sizes, shuffled.num_records)

    def score_of(copy: int) -> float:
        first, last = copy * shuffled.num_rows, (copy + 1) * shuffled.num_rows
        return score({name: values[first:last] for name, values in predictions.items()})

    baseline = score_of(0)
    columns_importances = []
    for number, column in enumerate(shuffled.columns):
        copies = range(1 + number * shuffled.repeats, 1 + (number + 1) * shuffled.repeats)
        falls = np.array([baseline - score_of(copy) for copy in copies])
        columns_importances.append(
            Importance(column=column, importance=float(falls.mean()), deviation=float(falls.std()))
        )
    return sorted(columns_importances, key=lambda measured: (-measured.importance, measured.column))


def require_drawing(file: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is computed for it.

    Raises:
        ConfigError: The file's suffix is no supported format, or its folder does not exist.
        MissingDependency: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency(
            "A picture of the importances needs matplotlib, which is not installed.",
            hint="Install it with pip install matplotlib, or do without the picture.",
        )
    if file.suffix not in _PICTURES or not file.absolute().parent.is_dir():
        raise ConfigError(
            f"A picture is a file that ends in {', '.join(_PICTURES)}, in a folder that exists.",
            received=str(file),
        )


def draw(importances: Sequence[Importance], file: Path, *, title: str) -> None:
    """Draw the importances as bars, into a file that `require_drawing` has checked.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 0.35 * len(importances)), layout="constrained")
    axes = figure.subplots()
    bars = list(reversed(importances))
    axes.barh(
        [importance.column for importance in bars],
        [importance.importance for importance in bars],
        xerr=[importance.deviation for importance in bars],
        color="tab:blue",
        ecolor="tab:gray",
    )
    axes.set_xlabel("fall of the score when the column is shuffled")
    axes.set_title(title)
    figure.savefig(file)


def _take_rows(shards: Sequence[Path], counts: Sequence[int], rows: NDArray[np.int64]) -> pa.Table:
    """Read rows by their numbers, with one shard in memory at a time."""
    ends = np.cumsum(counts)
    parts = []
    for shard, count, end in zip(shards, counts, ends, strict=True):
        indices = rows[(rows >= end - count) & (rows < end)] - (end - count)
        if len(indices):
            parts.append(pq.read_table(shard).take(pa.array(indices)))
    return pa.concat_tables(parts).combine_chunks()
