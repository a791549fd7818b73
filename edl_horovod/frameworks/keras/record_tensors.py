"""Convert a step's records to tensors: one string tensor, or one tensor for each column."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl_horovod.records.columns import Ragged, Values, empty
from edl_horovod.records.layout import BYTES, Column, Layout, Part, Structure
from edl_horovod.records.source import Records

__all__ = ["RecordTensors"]

Array = npt.NDArray[Any]


class RecordTensors:
    """Converts the records of one source, by way of the flat arrays that a graph's op returns."""

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout

    @property
    def types(self) -> list[tf.DType]:
        """The types of the arrays that `arrays` returns."""
        if self._layout is None:
            return [tf.string]
        types = []
        for column in self._layout.columns:
            types.append(tf.string if column.dtype == BYTES else tf.dtypes.as_dtype(column.dtype))
            types += [tf.int64] * column.is_ragged
        return types

    @property
    def needs_assembly(self) -> bool:
        """Whether `element` must be mapped over the records to build their tensors."""
        return self._layout is not None and self._layout.needs_assembly

    def arrays(self, records: Records | None) -> list[Array]:
        """Convert records to flat arrays; None gives empty arrays."""
        if self._layout is None:
            return [np.array(records or [], dtype=object)]
        columns: Sequence[Any] = empty(self._layout) if records is None else records
        return [array for values in columns for array in _arrays(values)]

    def records(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Pack the tensors of `arrays` into the structure of a record, with one tensor a column."""
        if self._layout is None:
            return tf.ensure_shape(tensors[0], (None,))
        remaining = iter(tensors)
        return self._layout.pack([_tensor(column, remaining) for column in self._layout.columns])

    def element(self, *record: Any) -> Any:
        """Build one record's tensors from its slice of `records`; for `tf.data.Dataset.map`."""
        assert self._layout is not None
        structure = self._layout.structure
        assert structure is not None
        # tf.data unpacks a record that is a tuple into arguments.
        return _assemble(structure, record if isinstance(structure, tuple) else record[0])


def _assemble(structure: Structure, packed: Any) -> Any:
    if isinstance(structure, dict):
        return {name: _assemble(inner, packed[name]) for name, inner in structure.items()}
    if isinstance(structure, tuple):
        return tuple(map(_assemble, structure, packed))
    if structure.is_column:
        return packed
    remaining = iter(packed)
    parts = [_part(part, remaining) for part in structure.parts]
    if structure.kind == "ragged":
        return tf.RaggedTensor.from_nested_row_splits(parts[0], parts[1:], validate=False)
    return tf.SparseTensor(*parts) if structure.kind == "sparse" else parts[0]


def _part(part: Part, tensors: Iterator[tf.Tensor]) -> tf.Tensor:
    values = next(tensors)
    if part.shape_column is None:
        return values
    return tf.ensure_shape(tf.reshape(values, next(tensors)), part.shape)


def _arrays(values: Values) -> list[Array]:
    if isinstance(values, Ragged):
        assert isinstance(values.values, np.ndarray)
        return [values.values, values.lengths]
    return [values]


def _tensor(column: Column, tensors: Any) -> Any:
    if column.is_ragged:
        values = tf.ensure_shape(next(tensors), (None,))
        lengths = tf.ensure_shape(next(tensors), (None,))
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
    return tf.ensure_shape(next(tensors), (None, *column.shape))
