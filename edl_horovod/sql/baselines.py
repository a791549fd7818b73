"""What a trained model must be better than: a constant and a linear model, on the same rows.

Both learn from the rows that the model learned from, and read the same columns, made into numbers
by the same code. Their cost is bounded whatever the table: rows are left out evenly, and of a
column of categories the rarer ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edl_horovod.columns.cells import arrays_of
from edl_horovod.columns.clauses import read_clauses
from edl_horovod.columns.features import Features, plan_features
from edl_horovod.columns.summary import TableSummary
from edl_horovod.config.schema import JobConfig
from edl_horovod.sql.unknown import array_of

__all__ = ["Comparison", "compare"]

MOST_ROWS = 20_000
MOST_CODES = 200
"""Values of a column of categories that the linear model tells apart, the commonest."""
MOST_CELLS = 20_000_000
"""Rows times numbers of a row that the linear model learns from."""
_ITERATIONS = 200
_MOST_WORK = 100_000_000_000
_PENALTY = 1.0
"""Of the squared weights, as scikit-learn has it in LogisticRegression and Ridge."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Metrics of a model and of its baselines on the rows that were held back."""

    num_rows: int
    metrics: dict[str, dict[str, float]]
    """`model`, `constant` and `linear` to their numbers: `rmse`, `absolute_error`, or `loss` and
    `accuracy`; the first is what counts, and less is better."""

    def __str__(self) -> str:
        """A sentence with all numbers."""
        shown = {
            name: ", ".join(f"{metric} {value:.4g}" for metric, value in found.items())
            for name, found in self.metrics.items()
        }
        return (
            f"On {self.num_rows:,} rows held back: {shown['model']}. A constant:"
            f" {shown['constant']}. A linear model: {shown['linear']}."
        )

    @property
    def warning(self) -> str:
        """A sentence where the model is no better than a baseline; else empty."""
        first = {name: next(iter(found.values())) for name, found in self.metrics.items()}
        worse = [name for name in ("constant", "linear") if not first["model"] < first[name]]
        if not worse:
            return ""
        what = " and ".join(
            {"constant": "a constant", "linear": "a linear model"}[n] for n in worse
        )
        hint = "More rows, other columns or WITH learning_rate and hidden_units may help."
        return f"Warning: on the rows held back the model is no better than {what}. {hint}"


def compare(
    adapted: Mapping[str, Any],
    config: JobConfig,
    metrics: Mapping[str, float],
    *,
    training: Path,
    held_back: Path,
) -> Comparison | None:
    """Hold a trained model against a constant and a linear model.

    Args:
        adapted: What the trained model keeps of its training's data.
        config: Of its training.
        metrics: Of it, on the rows that were held back.
        training: Folder of the rows that it learned from.
        held_back: Folder of the others.

    Returns:
        None where the numbers of the model are not those of the zoo's models of tables.
    """
    is_of_zoo = {"label", "columns", "read"} <= adapted.keys()
    measured = "accuracy" if is_of_zoo and adapted["classes"] else "absolute_error"
    if not is_of_zoo or config.loss or not {"loss", measured} <= metrics.keys():
        return None
    table = _Table(adapted, config.params)
    learn = _Regression() if table.summary.classes is None else _Classification(table.num_classes)
    learn.fit(*table.sample(training))
    totals: dict[str, _Floats] = {}
    num_rows = 0
    for features, labels in table.blocks(held_back):
        num_rows += len(labels)
        for name, total in learn.errors(features, labels).items():
            totals[name] = totals.get(name, np.zeros(2)) + total
    scale = table.summary.label.deviation
    of_model = np.array(
        [metrics["loss"], metrics[measured] / (1.0 if table.num_classes else scale)]
    )
    means = {"model": of_model, **{name: total / num_rows for name, total in totals.items()}}
    if table.num_classes:
        found = {n: {"loss": float(it[0]), "accuracy": float(it[1])} for n, it in means.items()}
    else:
        found = {
            name: {"rmse": scale * float(it[0]) ** 0.5, "absolute_error": scale * float(it[1])}
            for name, it in means.items()
        }
    return Comparison(num_rows=num_rows, metrics=found)


class _Table:
    """Rows as numbers, as a trained model found its columns."""

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
        return part.width + sum(min(table.num_codes, MOST_CODES) for table in part.tables) + 1

    def sample(self, folder: Path) -> tuple[_Floats, NDArray[Any]]:
        """Rows to learn from, evenly spread."""
        total = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
        most = min(MOST_ROWS, max(1, MOST_CELLS // self.width))
        parts = list(self.blocks(folder, stride=-(-total // most)))
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))  # type: ignore[return-value]

    def blocks(self, folder: Path, *, stride: int = 1) -> Iterator[tuple[_Floats, NDArray[Any]]]:
        """Features and labels of every so many rows, some rows after the other."""
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
        found = self._features.encode(arrays)
        num_rows = len(next(iter(arrays.values())))
        parts = [np.ones((num_rows, 1))]
        if "deep_numbers" in found:
            parts.append(found["deep_numbers"].astype(np.float64))
        for table in self._features.parts["deep"].tables:
            codes = found[table.input]
            hot = np.zeros((num_rows, min(table.num_codes, MOST_CODES)))
            rows, places = np.nonzero(codes < hot.shape[1])
            np.add.at(hot, (rows, codes[rows, places]), 1)
            parts.append(hot)
        return np.concatenate(parts, axis=1)


class _Regression:
    """The mean, which is 0 here, and ridge regression."""

    def fit(self, features: _Floats, labels: NDArray[Any]) -> None:
        self._weights = np.linalg.solve(_gram(features), features.T @ labels)

    def errors(self, features: _Floats, labels: NDArray[Any]) -> dict[str, _Floats]:
        """Sums of squared and absolute errors."""
        found = {"constant": labels, "linear": labels - features @ self._weights}
        return {
            name: np.array([np.square(each).sum(), np.abs(each).sum()])
            for name, each in found.items()
        }


class _Classification:
    """The shares of the classes, and logistic regression."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes

    def fit(self, features: _Floats, labels: NDArray[Any]) -> None:
        counts = np.bincount(labels, minlength=self._num_classes)
        self._shares = np.maximum(counts, 1e-3) / len(labels)
        truth = np.eye(self._num_classes)[labels]
        # Half the Gram matrix bounds the curvature of the loss, whatever the weights are (Boehning,
        # 1992), so one inverse serves all steps, and none goes too far.
        inverse = np.linalg.inv(_gram(features, share=0.5))
        weights = ahead = np.zeros((features.shape[1], self._num_classes))
        work = 4 * features.size * self._num_classes
        for number in range(max(10, min(_ITERATIONS, _MOST_WORK // work))):
            gradient = features.T @ (_softmax(features @ ahead) - truth) + _PENALTY * ahead
            before, weights = weights, ahead - inverse @ gradient
            ahead = weights + number / (number + 3) * (weights - before)  # Nesterov's momentum.
        self._weights = weights

    def errors(self, features: _Floats, labels: NDArray[Any]) -> dict[str, _Floats]:
        """Sums of the losses, and rows that are right."""
        rows = np.arange(len(labels))
        shares = np.broadcast_to(self._shares, (len(labels), self._num_classes))
        found = {"constant": shares, "linear": _softmax(features @ self._weights)}
        return {
            name: np.array(
                [
                    -np.log(np.maximum(each[rows, labels], 1e-12)).sum(),
                    (each.argmax(1) == labels).sum(),
                ]
            )
            for name, each in found.items()
        }


def _gram(features: _Floats, share: float = 1.0) -> _Floats:
    penalties = np.full(features.shape[1], _PENALTY)
    penalties[0] = 1e-6  # The constant.
    gram: _Floats = share * features.T @ features + np.diag(penalties)
    return gram


def _softmax(raw: _Floats) -> _Floats:
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))
    shares: _Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares
