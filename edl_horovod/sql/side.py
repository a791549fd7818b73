"""What of a SELECT's rows travels beside the records: their keys, or their values as they are."""

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

_ROWS = 1_000
_EXACT = {int, Decimal}
_LARGEST_WHOLE = 1 << 53
"""Whole numbers up to this one are exact in 64-bit floating point."""


def digest_of(row: Sequence[Any]) -> int:
    """A number of 64 bits by which a row is known to have changed."""
    digest = hashlib.blake2b(repr(tuple(row)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), signed=True)


class KeyReader:
    """The keys of rows, and a digest of what was selected of each."""

    def __init__(
        self, columns: Sequence[ScannedColumn], places: Sequence[int], *, num_selected: int
    ) -> None:
        self._columns = columns
        self._places = places
        self._num_selected = num_selected

    def read(self, batch: Sequence[tuple[Any, ...]], *, first_row: int) -> dict[str, pa.Array]:
        """The keys of some rows.

        Raises:
            DataError: A key is NULL, or of a type that cannot tell rows apart.
        """
        found = {}
        for number, (column, place) in enumerate(zip(self._columns, self._places, strict=True)):
            values = [row[place] for row in batch]
            if isinstance(values[0], uuid.UUID):
                values = [None if value is None else str(value) for value in values]
            keys = column.read(values, first_row=first_row)
            if keys.null_count or column.kind not in ("integer", "text", "bytes", "date"):
                raise DataError(
                    f"The key {column.name!r} does not tell rows apart: it is"
                    f" {'NULL' if keys.null_count else column.kind} in row {first_row + 1:,} or"
                    " soon after.",
                    hint="Predict into a new table.",
                )
            found[f"key_{number}"] = keys
        digests = [digest_of(row[: self._num_selected]) for row in batch]
        return {**found, "digest": pa.array(digests, pa.int64())}


class ExactReader:
    """The digits of whole numbers and decimals that floating point would lose, as texts."""

    def __init__(self, num_columns: int) -> None:
        self.scales: list[int | None] = [None] * num_columns
        """Of each column: digits behind the point, or None if floating point loses nothing."""

    def read(self, columns: Sequence[Sequence[Any]]) -> dict[str, pa.Array]:
        """The digits of some rows, NULL where a value is no such number."""
        texts = {}
        for number, values in enumerate(columns):
            lossy = [_is_lossy(value) for value in values] if _EXACT & {*map(type, values)} else ()
            if any(lossy):
                scales = [
                    -int(value.as_tuple().exponent)
                    for value in values
                    if isinstance(value, Decimal)
                ]
                self.scales[number] = max(self.scales[number] or 0, *scales, 0)
            exact = [
                format(value, "f" if isinstance(value, Decimal) else "d") if is_lossy else None
                for value, is_lossy in zip(values, lossy, strict=False)
            ]
            texts[f"exact_{number}"] = pa.array(exact or [None] * len(values), pa.string())
        return texts


def _is_lossy(value: object) -> bool:
    return isinstance(value, Decimal) or (isinstance(value, int) and abs(value) > _LARGEST_WHOLE)


def read_rows(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The rows that a folder of `Shards` holds, in their order."""
    for path in sorted(folder.glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS, use_threads=False):
                columns = [batch.column(place).to_pylist() for place in range(batch.num_columns)]
                yield from zip(*columns, strict=True)
