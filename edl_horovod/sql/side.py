"""The keys, or the exact values, that are stored beside the records of a SELECT's rows."""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edl_horovod.errors import DataError
from edl_horovod.sql.kinds import ScannedColumn

__all__ = ["ExactReader", "KeyReader", "digest_of", "read_rows"]

_BATCH_ROWS = 1_000
_EXACT_TYPES = {int, Decimal}
_LARGEST_EXACT_DOUBLE = 1 << 53
"""Whole numbers up to this limit are exact in 64-bit floating point."""


def digest_of(row: Sequence[Any]) -> int:
    """A 64-bit digest of a row, which shows whether the row has changed."""
    digest = hashlib.blake2b(repr(tuple(row)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), signed=True)


class KeyReader:
    """Reads the keys of rows, and a digest of the selected values of each row."""

    def __init__(
        self, columns: Sequence[ScannedColumn], places: Sequence[int], *, num_selected: int
    ) -> None:
        self._columns = columns
        self._places = places
        self._num_selected = num_selected

    def read(self, batch: Sequence[tuple[Any, ...]], *, first_row: int) -> dict[str, pa.Array]:
        """The keys and digests of consecutive rows.

        Raises:
            DataError: A key is NULL or has a type that cannot identify rows.
        """
        keys_and_digest = {}
        for number, (column, place) in enumerate(zip(self._columns, self._places, strict=True)):
            values = [row[place] for row in batch]
            if isinstance(values[0], uuid.UUID):
                values = [None if value is None else str(value) for value in values]
            key_values = column.read(values, first_row=first_row)
            if key_values.null_count or column.kind not in ("integer", "text", "bytes", "date"):
                raise DataError(
                    f"The key {column.name!r} does not identify rows: in row {first_row + 1:,} or"
                    f" soon after it is {'NULL' if key_values.null_count else f'a {column.kind}'}.",
                    hint="Predict into a new table.",
                )
            keys_and_digest[f"key_{number}"] = key_values
        digests = [digest_of(row[: self._num_selected]) for row in batch]
        return {**keys_and_digest, "digest": pa.array(digests, pa.int64())}


class ExactReader:
    """Reads, as texts, whole numbers and decimals that would lose digits in floating point."""

    def __init__(self, num_columns: int) -> None:
        self.scales: list[int | None] = [None] * num_columns
        """Decimal places of each column; None if floating point holds its values exactly."""

    def read(self, columns: Sequence[Sequence[Any]]) -> dict[str, pa.Array]:
        """The digits of consecutive rows; NULL for values that floating point holds exactly."""
        texts = {}
        for number, values in enumerate(columns):
            lossy = (
                [_is_lossy(value) for value in values]
                if _EXACT_TYPES & {*map(type, values)}
                else ()
            )
            if any(lossy):
                scales = [
                    -int(value.as_tuple().exponent)
                    for value in values
                    if isinstance(value, Decimal)
                ]
                self.scales[number] = max(self.scales[number] or 0, *scales, 0)
            digits = [
                format(value, "f" if isinstance(value, Decimal) else "d") if is_lossy else None
                for value, is_lossy in zip(values, lossy, strict=False)
            ]
            texts[f"exact_{number}"] = pa.array(digits or [None] * len(values), pa.string())
        return texts


def _is_lossy(value: object) -> bool:
    return isinstance(value, Decimal) or (
        isinstance(value, int) and abs(value) > _LARGEST_EXACT_DOUBLE
    )


def read_rows(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The rows of a folder that a `ShardWriter` wrote, in order."""
    for path in sorted(folder.glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                columns = [batch.column(place).to_pylist() for place in range(batch.num_columns)]
                yield from zip(*columns, strict=True)
