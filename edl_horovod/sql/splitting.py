"""Decides which rows of a training are held back for its validation, deterministically."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, did_you_mean

__all__ = ["SPLITS", "Split"]

SPLITS = ("key", "random", "sequential", "column", "none")
_HASHES = 1 << 64
_Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rule by which rows are held back for the validation."""

    kind: str = "none"
    """`key`: by the key of a row, so that a row stays on its side when others are added or removed.
    `random`: by the number of a row. `sequential`: the last rows. `column`: rows for which a column
    is true. `none`: no rows."""
    fraction: float = 0.1
    """The approximate share of rows held back, above 0 and below 1; ignored by `column`."""
    column: str = ""
    """The name of the column for `column`. The model does not learn from it."""
    seed: int = 0
    """For `key` and `random`: another seed holds other rows back."""

    def __post_init__(self) -> None:
        """Check the values of the fields."""
        if self.kind not in SPLITS:
            raise ConfigError(
                f"train.split must be one of {', '.join(SPLITS)}.",
                received={"train.split": self.kind},
                hint=did_you_mean(self.kind, SPLITS),
            )
        if not 0 < self.fraction < 1:
            raise ConfigError(
                "The share of rows for the validation must be above 0 and below 1.",
                received={"fraction": self.fraction},
            )
        if (self.kind == "column") != bool(self.column):
            raise ConfigError(
                "train.split=column needs train.split_column, which other splits do not take.",
                received={"train.split": self.kind, "column": self.column},
            )

    @property
    def needs_num_rows(self) -> bool:
        """Whether the total number of rows must be known in advance."""
        return self.kind == "sequential"

    def by_number(self, first_row: int, count: int, *, num_rows: int = 0) -> _Mask:
        """Which of consecutive rows are held back, for `random` and `sequential`.

        Args:
            first_row: The number of the first row, counted from 0.
            count: The number of rows.
            num_rows: The total number of rows, for `sequential`.
        """
        numbers = np.arange(first_row, first_row + count, dtype=np.uint64)
        if self.kind == "sequential":
            return numbers >= num_rows - round(num_rows * self.fraction)
        assert self.kind == "random", self.kind
        # A hash of the row's number: SplitMix64.
        mixed = numbers + np.uint64((self.seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % _HASHES)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed = mixed ^ (mixed >> np.uint64(31))
        return mixed < np.uint64(int(self.fraction * _HASHES))

    def by_key(self, keys: Sequence[tuple[object, ...]]) -> _Mask:
        """Which rows are held back by the values of their keys, for `key`."""
        assert self.kind == "key", self.kind
        bound = int(self.fraction * _HASHES)
        seed = self.seed.to_bytes(8, "little", signed=True)
        return np.fromiter((_hash(key, seed) < bound for key in keys), np.bool_, len(keys))

    def by_column(self, values: Sequence[object], *, first_row: int = 0) -> _Mask:
        """Which rows are held back by the values of a column, for `column`.

        Raises:
            DataError: A value is not TRUE, FALSE, 1 or 0.
        """
        assert self.kind == "column", self.kind
        for index, value in enumerate(values):
            if not isinstance(value, bool | int) or value not in (0, 1):
                raise DataError(
                    f"The column {self.column!r} of train.split must hold TRUE or FALSE, 1 or 0.",
                    received=f"{value!r} in row {first_row + index + 1:,}",
                    hint="Add such a column to the SELECT, for example with CASE.",
                )
        return np.fromiter(map(bool, values), np.bool_, len(values))


def _hash(key: tuple[object, ...], seed: bytes) -> int:
    # Drivers may give the same key as 1 or as 1.0.
    texts = (str(int(p)) if isinstance(p, float) and p.is_integer() else str(p) for p in key)
    joined = "\0".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8, key=seed).digest(), "little")
