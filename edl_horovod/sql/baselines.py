"""Compares a trained model with two baselines on the same rows: a constant and a linear model.

Both learn from the rows that the model learned from, and read the same columns, converted to
numbers by the same code. Their cost is bounded for any table: they leave out rows evenly, and the
rarer values of columns of categories.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edl_horovod.columns.clauses import read_clauses
from edl_horovod.columns.features import Features, plan_features
from edl_horovod.columns.summary import TableSummary, arrays_of
from edl_horovod.config.schema import JobConfig
from edl_horovod.sql.unknown_values import array_of

MAX_ROWS = 20_000
MAX_CATEGORIES = 200
"""The number of values per column of categories that the linear model uses, the most frequent."""
MAX_CELLS = 20_000_000
"""The maximum size of the matrix that the linear model learns from: rows times numbers per row."""
_ITERATIONS = 200
_MAX_OPERATIONS = 100_000_000_000
_PENALTY = 1.0
"""The factor of the squared weights, the default of scikit-learn's LogisticRegression and Ridge."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Metrics of a model and of its baselines on the rows held back."""

    num_rows: int
    is_linear: bool
    """Whether the model itself is linear, and so cannot be better than the linear baseline."""
    metrics: dict[str, dict[str, float]]
    """Metrics of `model`, `constant` and `linear`: `rmse` and `absolute_error`, or `loss` and
    `accuracy`. The first decides the comparison, and less is better."""

    def __str__(self) -> str:
        """Sentences with all numbers."""
        shown = {
            name: ", ".join(f"{metric} {value:.4g}" for metric, value in metrics.items())
            for name, metrics in self.metrics.items()
        }
        return (
            f"On {self.num_rows:,} rows held back: {shown['model']}. A constant:"
            f" {shown['constant']}. A linear model: {shown['linear']}."
        )

    @property
    def warning(self) -> str:
        """A warning if the model is no better than a baseline; else empty."""
        losses = {name: next(iter(metrics.values())) for name, metrics in self.metrics.items()}
        compared = ("constant",) if self.is_linear else ("constant", "linear")
        worse = [name for name in compared if not losses["model"] < losses[name]]
        if not worse:
            return ""
        baselines = " and ".join(
            {"constant": "a constant", "linear": "a linear model"}[name] for name in worse
        )
        parameters = "learning_rate" if self.is_linear else "learning_rate and hidden_units"
        hint = f"More rows, other columns or WITH {parameters} may help."
        return f"Warning: on the rows held back the model is no better than {baselines}. {hint}"


def compare(
    adapted: Mapping[str, Any],
    config: JobConfig,
    metrics: Mapping[str, float],
    *,
    is_linear: bool,
    training: Path,
    held_back: Path,
) -> Comparison | None:
    """Compare a trained model with a constant and a linear model.

    Args:
        adapted: The summary of the training data in the trained model.
        config: The settings of its training.
        metrics: Its metrics on the rows held back.
        is_linear: Whether it is a linear model.
        training: The folder of the rows that it learned from.
        held_back: The folder of the rows held back.

    Returns:
        None if the model does not have the loss and metrics of the zoo's models of tables.
    """
    is_of_zoo = {"label", "columns", "read"} <= adapted.keys()
    second_metric = "accuracy" if is_of_zoo and adapted["classes"] else "absolute_error"
    if not is_of_zoo or config.loss or not {"loss", second_metric} <= metrics.keys():
        return None
    table = _TableReader(adapted, config.params)
    num_classes = table.num_classes
    baselines = _ClassificationBaselines(num_classes) if num_classes else _RegressionBaselines()
    baselines.fit(*table.sample(training))
    totals: dict[str, _Floats] = {}
    num_rows = 0
    for features, labels in table.blocks(held_back):
        num_rows += len(labels)
        for name, total in baselines.errors(features, labels).items():
            totals[name] = totals.get(name, np.zeros(2)) + total
    scale = table.summary.label.deviation
    unit = 1.0 if num_classes else scale
    means = {"model": np.array([metrics["loss"], metrics[second_metric] / unit])}
    means |= {name: total / num_rows for name, total in totals.items()}

    def metrics_of(values: _Floats) -> dict[str, float]:
        first, second = map(float, values)
        if num_classes:
            return {"loss": first, "accuracy": second}
        return {"rmse": scale * first**0.5, "absolute_error": scale * second}

    metrics_by_model = {name: metrics_of(values) for name, values in means.items()}
    return Comparison(num_rows=num_rows, is_linear=is_linear, metrics=metrics_by_model)


class _TableReader:
    """Reads rows as numbers, encoded as in the training of a model."""

    def __init__(self, adapted: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        self.summary = TableSummary.from_json(adapted)
        columns = {name: self.summary.columns[name] for name in adapted["read"]}
        clauses = read_clauses(params.get("columns", ()), parts=("deep", "wide"))
        self._features: Features = plan_features(columns, clauses, parts=("deep",))
        self._read = (*self._features.columns, self.summary.label)

    @property
    def num_classes(self) -> int:
        return len(self.summary.classes.values) if self.summary.classes is not None else 0

    @property
    def width(self) -> int:
        part = self._features.parts["deep"]
        return part.width + sum(min(table.num_codes, MAX_CATEGORIES) for table in part.tables) + 1

    def sample(self, folder: Path) -> tuple[_Floats, NDArray[Any]]:
        """Evenly spread rows to learn from: features and labels."""
        total = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
        max_rows = min(MAX_ROWS, max(1, MAX_CELLS // self.width))
        parts = list(self.blocks(folder, stride=-(-total // max_rows)))
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))  # type: ignore[return-value]

    def blocks(self, folder: Path, *, stride: int = 1) -> Iterator[tuple[_Floats, NDArray[Any]]]:
        """Blocks of features and labels of every `stride`-th row."""
        names = [column.name for column in self._read]
        first = 0
        for file in sorted(folder.glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(batch_size=5_000, columns=names):
                rows = batch.take(np.arange(-first % stride, batch.num_rows, stride))
                first += batch.num_rows
                if rows.num_rows:
                    cells = {name: array_of(rows.column(name)) for name in names}
                    arrays = arrays_of(cells, self._read)
                    yield self._numbers(arrays), self._labels(arrays[self.summary.label.name])

    def _labels(self, cells: NDArray[Any]) -> NDArray[Any]:
        if self.summary.classes is not None:
            return self.summary.classes.encode(cells)
        label = self.summary.label
        return (cells.astype(np.float64) - label.mean) / label.deviation

    def _numbers(self, arrays: Mapping[str, NDArray[Any]]) -> _Floats:
        encoded = self._features.encode(arrays)
        num_rows = len(next(iter(arrays.values())))
        parts = [np.ones((num_rows, 1))]
        if "deep_numbers" in encoded:
            parts.append(encoded["deep_numbers"].astype(np.float64))
        for table in self._features.parts["deep"].tables:
            codes = encoded[table.input]
            one_hot = np.zeros((num_rows, min(table.num_codes, MAX_CATEGORIES)))
            rows, slots = np.nonzero(codes < one_hot.shape[1])
            np.add.at(one_hot, (rows, codes[rows, slots]), 1)
            parts.append(one_hot)
        return np.concatenate(parts, axis=1)


class _RegressionBaselines:
    """Predicts the mean of the label, which is scaled to 0, and by ridge regression."""

    def fit(self, features: _Floats, labels: NDArray[Any]) -> None:
        self._weights = np.linalg.solve(_gram(features), features.T @ labels)

    def errors(self, features: _Floats, labels: NDArray[Any]) -> dict[str, _Floats]:
        """The sums of squared and of absolute errors, by baseline."""
        errors = {"constant": labels, "linear": labels - features @ self._weights}
        return {
            name: np.array([np.square(error).sum(), np.abs(error).sum()])
            for name, error in errors.items()
        }


class _ClassificationBaselines:
    """Predicts the shares of the classes, and by logistic regression."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes

    def fit(self, features: _Floats, labels: NDArray[Any]) -> None:
        counts = np.bincount(labels, minlength=self._num_classes)
        self._shares = np.maximum(counts, 1e-3) / len(labels)
        truth = np.eye(self._num_classes)[labels]
        # Half the Gram matrix bounds the curvature of the loss for all weights (Boehning, 1992), so
        # a single inverse serves all steps, and no step overshoots.
        inverse = np.linalg.inv(_gram(features, share=0.5))
        weights = ahead = np.zeros((features.shape[1], self._num_classes))
        work = 4 * features.size * self._num_classes
        for number in range(max(10, min(_ITERATIONS, _MAX_OPERATIONS // work))):
            gradient = features.T @ (_softmax(features @ ahead) - truth) + _PENALTY * ahead
            before, weights = weights, ahead - inverse @ gradient
            ahead = weights + number / (number + 3) * (weights - before)  # Nesterov momentum.
        self._weights = weights

    def errors(self, features: _Floats, labels: NDArray[Any]) -> dict[str, _Floats]:
        """The sum of the losses and the number of correct rows, by baseline."""
        rows = np.arange(len(labels))
        shares = np.broadcast_to(self._shares, (len(labels), self._num_classes))
        probabilities = {"constant": shares, "linear": _softmax(features @ self._weights)}

        def sums(probability: _Floats) -> _Floats:
            losses = -np.log(np.maximum(probability[rows, labels], 1e-12))
            return np.array([losses.sum(), (probability.argmax(1) == labels).sum()])

        return {name: sums(probability) for name, probability in probabilities.items()}


def _gram(features: _Floats, share: float = 1.0) -> _Floats:
    penalties = np.full(features.shape[1], _PENALTY)
    penalties[0] = 1e-6  # The intercept is hardly penalized.
    gram: _Floats = share * features.T @ features + np.diag(penalties)
    return gram


def _softmax(raw: _Floats) -> _Floats:
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))
    shares: _Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares
