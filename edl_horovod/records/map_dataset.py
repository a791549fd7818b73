"""Records of a user's object by index: bytes, arrays, or tuples or dicts of these."""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, EdlError, UserCodeError
from edl_horovod.records.columns import Values, common_type, holds_exactly, stacked
from edl_horovod.records.elements import text_array
from edl_horovod.records.index_tables import locate
from edl_horovod.records.layout import BYTES, Column, Layout, selected_columns
from edl_horovod.records.source import Records, RecordSource

_BLOCK_RECORDS = 64
_NUM_SAMPLES = 32
"""Number of evenly spaced records that determine types and shapes, identically on every rank."""

_Parts = dict[str, NDArray[Any]]


class MapDataset(RecordSource):
    """Reads records from the object one by one, in one thread at a time."""

    def __init__(self, records: Any, name: str, *, selected: Sequence[str]) -> None:
        """Read some records to determine the columns of all records.

        Raises:
            ConfigError: A selected column does not exist.
            DataError: There are no records, or they differ in type or shape.
            UserCodeError: The object raised an exception.
        """
        self._records, self._name = records, name
        self._num_records = self._length()
        positions = np.linspace(0, self._num_records - 1, min(_NUM_SAMPLES, self._num_records))
        samples = [self._record(number) for number in dict.fromkeys(positions.astype(int).tolist())]
        self._kind = _kind_of(samples[0])
        parts = [self._parts(record) for record in samples]
        names = self._names(list(parts[0]), selected)
        layout = Layout(tuple(self._column(part, parts) for part in names), self._kind)
        is_bytes = self._kind == "value" and layout.columns[0] == Column("", BYTES)
        self.layout = None if is_bytes else layout
        self._columns = layout
        self.block_starts = np.arange(0, self._num_records, _BLOCK_RECORDS)
        self.block_counts = np.minimum(_BLOCK_RECORDS, self._num_records - self.block_starts)
        self.fingerprint = self._digest(parts)
        self._record_bytes = float(np.mean([sum(map(_size, part.values())) for part in parts]))

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Records:
        """Return the records with these ids, in this order.

        Raises:
            DataError: A record does not have the types and shapes of the others.
            UserCodeError: The object raised an exception.
        """
        numbers, _ = locate(ids, np.arange(self._num_records), self._num_records)
        parts = [self._parts(self._record(number)) for number in numbers.tolist()]
        columns = [
            self._stacked(column, [part.get(column.name) for part in parts], numbers)
            for column in self._columns.columns
        ]
        if self.layout is None:
            (texts,) = columns
            assert isinstance(texts, np.ndarray)
            return [bytes(text) for text in texts.tolist()]
        return columns

    def record_bytes(self) -> float:
        """Return the average size of the sampled records in memory, in bytes."""
        return self._record_bytes

    def describe(self) -> str:
        """Describe the object and its number of records for the log."""
        return f"{self._num_records:,} records of {self._name}"

    def close(self) -> None:
        """Release the object."""
        self._records = ()

    def __len__(self) -> int:
        return self._num_records

    def _length(self) -> int:
        try:
            length = len(self._records)
        except EdlError:
            raise
        except Exception as e:
            raise self._failed("its length", e) from e
        if length < 1:
            raise DataError("There are no records in the data.", received={"data": self._name})
        return length

    def _record(self, number: int) -> Any:
        try:
            return self._records[number]
        except EdlError:
            raise
        except Exception as e:
            raise self._failed(f"record {number}", e) from e

    def _failed(self, operation: str, error: Exception) -> UserCodeError:
        problem = f"raised an exception for {operation}: {type(error).__name__}: {error}."
        return UserCodeError(f"{self._name} {problem}", received={"data": self._name})

    def _parts(self, record: Any) -> _Parts:
        """Return the values of a record by name; the name of a tuple item is its index, else ""."""
        if _kind_of(record) != self._kind:
            raise self._misfit(f"some are a {self._kind}, others a {_kind_of(record)}")
        if self._kind == "dict":
            named = {str(key): value for key, value in record.items()}
        elif self._kind == "tuple":
            named = {str(index): value for index, value in enumerate(record)}
        else:
            named = {"": record}
        return {name: self._array(name, value) for name, value in named.items()}

    def _array(self, name: str, value: Any) -> NDArray[Any]:
        if (text := text_array(value)) is not None:
            return text
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            part = f"the part {name!r} of a record" if name else "a record"
            raise self._misfit(f"{part} is a {type(value).__name__}, not an array, number or text")
        return array

    def _names(self, names: list[str], selected: Sequence[str]) -> list[str]:
        if selected and self._kind != "dict":
            raise ConfigError(
                f"The records of {self._name} are not dicts, so their parts have no names.",
                received={"data_plan.columns": ",".join(selected)},
                hint="Remove the setting.",
            )
        return selected_columns(selected, names, holder=f"A record of {self._name}", noun="part")

    def _column(self, name: str, parts: Sequence[_Parts]) -> Column:
        arrays = [self._part(part.get(name), name) for part in parts]
        # The type of an empty Python list is unknown.
        types = dict.fromkeys(array.dtype for array in arrays if array.size)
        common = common_type(types or [arrays[0].dtype])
        if common is None:
            subject = f"the parts {name!r}" if name else "they"
            kinds = " and ".join("text" if kind.kind == "O" else kind.name for kind in types)
            raise self._misfit(f"{subject} are {kinds}, which no common type holds exactly")
        dtype = BYTES if common.kind == "O" else common.name
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1 and {len(shape) for shape in shapes} == {1}:
            return Column(name, dtype, (None,))
        return Column(name, dtype, arrays[0].shape)

    def _stacked(
        self, column: Column, values: list[NDArray[Any] | None], ids: NDArray[np.int64]
    ) -> Values:
        arrays = [self._part(value, column.name) for value in values]
        dtype = np.dtype(object if column.dtype == BYTES else column.dtype)
        for number, array in zip(ids.tolist(), arrays, strict=True):
            has_same_shape = array.ndim == 1 if column.is_ragged else array.shape == column.shape
            if not has_same_shape or not _has_kind_of(dtype, array):
                value = f"{array.dtype.name}{list(array.shape)}"
                usual = f"{column.dtype}{list(column.shape)}"
                raise self._misfit(f"record {number} has {value} where others have {usual}")
            if not holds_exactly(dtype, array):
                value = f"{array.min()} to {array.max()}" if array.ndim else f"{array}"
                usual = f"{column.dtype}, which does not hold this exactly"
                raise self._misfit(f"record {number} has {value} where others have {usual}")
        return stacked(arrays, column)

    def _part(self, value: NDArray[Any] | None, name: str) -> NDArray[Any]:
        if value is None:
            raise self._misfit(f"some have no {name!r}")
        return value

    def _misfit(self, problem: str) -> DataError:
        return DataError(
            f"The records of {self._name} cannot become tensors: {problem}.",
            received={"data": self._name},
            hint="Each record must be bytes, an array, or a tuple or dict of numbers, text and"
            " arrays, with the same types and shapes in all records.",
        )

    def _digest(self, parts: Sequence[_Parts]) -> str:
        """Return a digest of the number of records and of the sampled records."""
        digest = hashlib.sha256(f"{self._num_records} {self._columns}".encode())
        for array in itertools.chain.from_iterable(part.values() for part in parts):
            is_text = array.dtype == object
            digest.update(b"\0".join(array.flat) if is_text else np.ascontiguousarray(array).data)
        return digest.hexdigest()[:32]


def _kind_of(record: Any) -> Literal["dict", "tuple", "value"]:
    if isinstance(record, dict):
        return "dict"
    return "tuple" if isinstance(record, tuple) else "value"


def _has_kind_of(dtype: np.dtype[Any], array: NDArray[Any]) -> bool:
    """Whether an array is text or numbers as a type is; the type of an empty one is unknown."""
    # NumPy casts any number to an object.
    is_number_in_text = dtype.kind == "O" and array.dtype.kind != "O"
    has_kind = np.can_cast(array.dtype, dtype, "same_kind") and not is_number_in_text
    return has_kind or not array.size


def _size(array: NDArray[Any]) -> int:
    return sum(map(len, array.flat)) if array.dtype == object else array.nbytes
