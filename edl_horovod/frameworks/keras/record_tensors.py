"""A step's records as tensors: one string tensor, or the columns of a source that has them."""

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
    """How the records of one source become tensors; a call from a graph hands on flat arrays."""

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout

    @property
    def types(self) -> list[tf.DType]:
        """The types of the arrays that `arrays` gives."""
        if self._layout is None:
            return [tf.string]
        types = []
        for column in self._layout.columns:
            types.append(tf.string if column.dtype == BYTES else tf.dtypes.as_dtype(column.dtype))
            types += [tf.int64] * column.is_ragged
        return types

    @property
    def needs_assembly(self) -> bool:
        """Whether `element` must make the tensors of each record."""
        return self._layout is not None and self._layout.needs_assembly

    def arrays(self, records: Records | None) -> list[Array]:
        """The arrays of some records, or of none."""
        if self._layout is None:
            return [np.array(records or [], dtype=object)]
        found: Sequence[Any] = empty(self._layout) if records is None else records
        return [array for values in found for array in _arrays(values)]

    def records(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The records as tensors of those arrays: one for each column, packed as a record is."""
        if self._layout is None:
            return tf.ensure_shape(tensors[0], (None,))
        left = iter(tensors)
        return self._layout.pack([_tensor(column, left) for column in self._layout.columns])

    def element(self, *record: Any) -> Any:
        """The tensors of one record, of what `records` gave of it; for `tf.data.Dataset.map`."""
        assert self._layout is not None
        structure = self._layout.structure
        assert structure is not None
        # Where a record is a tuple, tf.data hands on its parts.
        return _assembled(structure, record if isinstance(structure, tuple) else record[0])


def _assembled(structure: Structure, packed: Any) -> Any:
    if isinstance(structure, dict):
        return {name: _assembled(inner, packed[name]) for name, inner in structure.items()}
    if isinstance(structure, tuple):
        return tuple(map(_assembled, structure, packed))
    if structure.is_column:
        return packed
    left = iter(packed)
    parts = [_part(part, left) for part in structure.parts]
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
