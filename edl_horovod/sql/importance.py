"""Permutation importance: how much worse a model predicts when a column is shuffled.

All shuffled copies of the rows are in one file, so that a single job predicts them all.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, MissingDependency

__all__ = ["Importance", "ShuffledRows", "draw", "importances", "require_drawing", "write_shuffled"]

MAX_ROWS = 2_000
"""The number of sampled rows; the job predicts each of them once per column and repeat."""
_ROW_GROUP = 20_000
_PICTURES = (".png", ".svg", ".pdf")


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


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The importance of a column."""

    column: str
    importance: float
    """How much the score falls when the column is shuffled: the mean over the repeats."""
    deviation: float
    """The standard deviation over the repeats."""


def write_shuffled(
    shards: Sequence[Path],
    file: Path,
    columns: Sequence[str],
    *,
    repeats: int = 5,
    seed: int = 0,
    max_rows: int = MAX_ROWS,
) -> ShuffledRows:
    """Write the copies of sampled rows as one Parquet file.

    Args:
        shards: Parquet files of the rows, in order.
        file: The new file.
        columns: The columns to shuffle, one at a time.
        repeats: The number of times that each is shuffled.
        seed: The seed of the sampling and of the shuffling.
        max_rows: The maximum number of sampled rows.

    Raises:
        DataError: There are fewer than two rows.
        OSError: A file cannot be read or written.
    """
    counts = [pq.read_metadata(shard).num_rows for shard in shards]
    total = sum(counts)
    if total < 2:
        raise DataError(
            "The importance of columns can only be measured on two rows or more.",
            received=f"{total} rows",
            hint="Select more rows.",
        )
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(total, min(total, max_rows), replace=False))
    table = _take_rows(shards, counts, rows)
    with pq.ParquetWriter(file, table.schema) as writer:
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
    return sorted(
        columns_importances, key=lambda importance: (-importance.importance, importance.column)
    )


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
