"""A step's records as tensors: one string tensor, or the columns of a source that has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl_horovod.records.columns import Ragged, Values, empty
from edl_horovod.records.layout import BYTES, Column, Layout
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
