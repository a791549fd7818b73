"""Which columns matter to a model: how much worse it predicts when one of them is shuffled.

All shuffled copies of the rows are written beside each other, so one job predicts them all.
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

__all__ = [
    "Importance",
    "ShuffledRows",
    "draw",
    "importances",
    "require_drawing",
    "write_shuffled",
]

MAX_ROWS = 2_000
"""Rows that are drawn from all; the job predicts each once for every column and repeat."""
_ROW_GROUP = 20_000
_PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class ShuffledRows:
    """Rows as they are, and then once more for each column and repeat with that column shuffled."""

    columns: tuple[str, ...]
    repeats: int
    num_rows: int
    """Of one copy."""
    rows: NDArray[np.int64]
    """The numbers of the rows that were drawn, rising, shape (num_rows,)."""

    @property
    def num_records(self) -> int:
        """Of all copies, in the file."""
        return self.num_rows * (1 + len(self.columns) * self.repeats)


@dataclass(frozen=True, kw_only=True)
class Importance:
    """What a column is worth."""

    column: str
    importance: float
    """How much the score falls when the column is shuffled, the mean of the repeats."""
    deviation: float
    """The standard deviation of the repeats."""


def write_shuffled(
    shards: Sequence[Path],
    file: Path,
    columns: Sequence[str],
    *,
    repeats: int = 5,
    seed: int = 0,
    max_rows: int = MAX_ROWS,
) -> ShuffledRows:
    """Write the copies of a table's rows as one Parquet file.

    Args:
        shards: Parquet files of the rows, in their order.
        file: To be written.
        columns: To be shuffled, one at a time; the others stay as they are.
        repeats: How often each is shuffled.
        seed: Of the draw and of the shuffling.
        max_rows: Most rows that are drawn.

    Raises:
        DataError: There are fewer than two rows.
        OSError: A file cannot be read or written.
    """
    counts = [pq.read_metadata(shard).num_rows for shard in shards]
    total = sum(counts)
    if total < 2:
        raise DataError(
            "Which columns matter can only be told from two rows or more.",
            received=f"{total} rows",
            hint="Select more rows.",
        )
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(total, min(total, max_rows), replace=False))
    table = _taken(shards, counts, rows)
    with pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)
        for column in columns:
            place = table.column_names.index(column)
            for _ in range(repeats):
                shuffled = table.column(column).take(pa.array(random.permutation(len(table))))
                copy = table.set_column(place, table.schema.field(place), shuffled)
                writer.write_table(copy, row_group_size=_ROW_GROUP)
    return ShuffledRows(
        columns=tuple(columns), repeats=repeats, num_rows=len(table), rows=rows.astype(np.int64)
    )


def importances(
    shuffled: ShuffledRows,
    predictions: Mapping[str, NDArray[np.generic]],
    score: Callable[[Mapping[str, NDArray[np.generic]]], float],
) -> list[Importance]:
    """What each column is worth, the most important first.

    Args:
        shuffled: What was predicted.
        predictions: The model's outputs for all records of the file, by name, shape (records, ...).
        score: How good the outputs for one copy of the rows are; the higher, the better.
    """
    sizes = {len(values) for values in predictions.values()}
    assert sizes == {shuffled.num_records}, (sizes, shuffled.num_records)

    def score_of(copy: int) -> float:
        first, last = copy * shuffled.num_rows, (copy + 1) * shuffled.num_rows
        return score({name: values[first:last] for name, values in predictions.items()})

    whole = score_of(0)
    found = []
    for number, column in enumerate(shuffled.columns):
        copies = range(1 + number * shuffled.repeats, 1 + (number + 1) * shuffled.repeats)
        falls = np.array([whole - score_of(copy) for copy in copies])
        found.append(
            Importance(column=column, importance=float(falls.mean()), deviation=float(falls.std()))
        )
    return sorted(found, key=lambda each: (-each.importance, each.column))


def require_drawing(file: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is computed for it.

    Raises:
        ConfigError: The end of the file's name is that of no kind of pictures.
        MissingDependency: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency(
            "A picture of the importances needs matplotlib, which is not installed.",
            hint="Install it by pip install matplotlib, or take the rows alone.",
        )
    if file.suffix not in _PICTURES or not file.absolute().parent.is_dir():
        raise ConfigError(
            f"A picture is a file that ends in {', '.join(_PICTURES)}, in a folder that is there.",
            received=str(file),
        )


def draw(found: Sequence[Importance], file: Path, *, title: str) -> None:
    """Draw the importances as bars, into a file that `require_drawing` has let pass.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 0.35 * len(found)), layout="constrained")
    axes = figure.subplots()
    shown = list(reversed(found))
    axes.barh(
        [each.column for each in shown],
        [each.importance for each in shown],
        xerr=[each.deviation for each in shown],
        color="tab:blue",
        ecolor="tab:gray",
    )
    axes.set_xlabel("fall of the score when the column is shuffled")
    axes.set_title(title)
    figure.savefig(file)


def _taken(shards: Sequence[Path], counts: Sequence[int], rows: NDArray[np.int64]) -> pa.Table:
    """Some rows by their numbers; one shard is in memory at a time."""
    ends = np.cumsum(counts)
    parts = []
    for shard, count, end in zip(shards, counts, ends, strict=True):
        inside = rows[(rows >= end - count) & (rows < end)] - (end - count)
        if len(inside):
            parts.append(pq.read_table(shard).take(pa.array(inside)))
    return pa.concat_tables(parts).combine_chunks()
