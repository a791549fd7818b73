"""Layers that turn raw columns into numbers and ids: ElasticDL's preprocessing layers.

Names, arguments and results are those of ElasticDL's tutorial of its preprocessing layers
(https://github.com/sql-machine-learning/elasticdl, `docs/tutorials/preprocessing_tutorial.md`).
Each takes a dense, a sparse or a ragged tensor, and gives one of the same kind and shape.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = [
    "ConcatenateWithOffset",
    "Discretization",
    "Hashing",
    "IndexLookup",
    "LogRound",
    "Normalizer",
    "RoundIdentity",
    "ToNumber",
    "ToRagged",
    "ToSparse",
]


class _OfEachValue(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """A layer without weights that does the same to each value."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False  # Texts and integers are no floats to be cast.

    def call(self, inputs: Any) -> Any:
        """The results, in a tensor of the kind and shape of the values."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self._of_values(inputs.values))
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._of_values(inputs.flat_values))
        return self._of_values(inputs)

    @abstractmethod
    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        """The results for a dense tensor of values."""


class Normalizer(_OfEachValue):
    """`(x - subtractor) / divisor`, in float32."""

    def __init__(self, subtractor: float, divisor: float, **kwargs: Any) -> None:
        """Keep both numbers.

        Raises:
            UserCodeError: The divisor is 0.
        """
        if divisor == 0:
            raise UserCodeError(
                "Normalizer cannot divide by 0.",
                received={"divisor": divisor},
                cure="Give the range or the standard deviation of a column that is not constant.",
            )
        super().__init__(**kwargs)
        self.subtractor = subtractor
        self.divisor = divisor

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        return (tf.cast(values, tf.float32) - self.subtractor) / self.divisor


class Discretization(_OfEachValue):
    """The number of the range that a value lies in; each boundary begins a range. int64."""

    def __init__(self, bins: Sequence[float], **kwargs: Any) -> None:
        """Keep the boundaries, in ascending order; `len(bins) + 1` ranges."""
        super().__init__(**kwargs)
        self.bins = list(bins)

    def num_bins(self) -> int:
        """How many ranges there are."""
        return len(self.bins) + 1

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        boundaries = [float(boundary) for boundary in self.bins]
        return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=boundaries), tf.int64)


class _Rounded(_OfEachValue):
    """Rounded to an integer in `[0, size)`; `default_value` where it is none. int64."""

    def __init__(self, size: int, default_value: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.default_value = default_value
        self._size = size

    def _in_range(self, values: tf.Tensor) -> tf.Tensor:
        whole = tf.cast(tf.round(values), tf.int64)
        is_inside = (whole >= 0) & (whole < self._size)
        return tf.where(is_inside, whole, tf.cast(self.default_value, tf.int64))


class LogRound(_Rounded):
    """`round(log(x))`, an integer below `num_bins`; `default_value` where it is none. int64."""

    def __init__(
        self, num_bins: int, default_value: int = 0, base: float | None = None, **kwargs: Any
    ) -> None:
        """Keep the number of results and the base of the logarithm, e where it is None."""
        super().__init__(num_bins, default_value, **kwargs)
        self.num_bins = num_bins
        self.base = base

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        # In float64, so that a power of the base is one: log(8) / log(2) is below 3 in float32.
        logarithms = tf.math.log(tf.cast(values, tf.float64))
        if self.base is not None:
            logarithms /= tf.math.log(tf.constant(self.base, tf.float64))
        is_number = tf.math.is_finite(logarithms)
        return self._in_range(tf.where(is_number, logarithms, tf.constant(-1.0, tf.float64)))


class RoundIdentity(_Rounded):
    """`round(x)`, an integer below `num_buckets`; `default_value` where it is none. int64."""

    def __init__(self, num_buckets: int, default_value: int = 0, **kwargs: Any) -> None:
        """Keep the number of results."""
        super().__init__(num_buckets, default_value, **kwargs)
        self.num_buckets = num_buckets

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        return self._in_range(values)


class Hashing(_OfEachValue):
    """`hash(x) % num_bins` of a text, or of an integer as a text (FarmHash64). int64."""

    def __init__(self, num_bins: int, **kwargs: Any) -> None:
        """Keep the number of bins.

        Raises:
            UserCodeError: It is not 1 or more.
        """
        if num_bins is None or num_bins < 1:
            raise UserCodeError(
                "Hashing needs a number of bins, 1 or more.", received={"num_bins": num_bins}
            )
        super().__init__(**kwargs)
        self.num_bins = num_bins

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        texts = values if values.dtype == tf.string else tf.strings.as_string(values)
        return tf.strings.to_hash_bucket_fast(texts, self.num_bins)


class IndexLookup(_OfEachValue):
    """The place of a text in a vocabulary; behind it the places of texts that it lacks. int64."""

    def __init__(
        self, vocabulary: Sequence[str] | str, num_oov_tokens: int = 1, **kwargs: Any
    ) -> None:
        """Make the table.

        Args:
            vocabulary: The texts, or the path of a text file with one a line.
            num_oov_tokens: Over how many places other texts are spread by their hash; 1 or more.
            kwargs: Those of a Keras layer.

        Raises:
            UserCodeError: The vocabulary is empty, or holds a text twice.
        """
        super().__init__(**kwargs)
        texts = (
            [line.strip() for line in Path(vocabulary).read_text("utf-8").splitlines()]
            if isinstance(vocabulary, str)
            else list(vocabulary)
        )
        twice = sorted({text for text in texts if texts.count(text) > 1}) if texts else []
        if twice or not texts:
            raise UserCodeError(
                "IndexLookup needs a vocabulary, each text once.",
                received=f"{', '.join(map(repr, twice))} twice" if twice else "an empty one",
            )
        self.vocabulary = texts
        self.num_oov_tokens = num_oov_tokens
        places = tf.range(len(texts), dtype=tf.int64)
        self._table = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(texts), places), num_oov_tokens
        )

    def vocab_size(self) -> int:
        """How many places there are, with those of texts that the vocabulary lacks."""
        return len(self.vocabulary) + self.num_oov_tokens

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        return self._table.lookup(values)


class ToNumber(_OfEachValue):
    """A text, or a number of another type, as a number; an empty text is the default."""

    def __init__(self, out_type: Any, default_value: float, **kwargs: Any) -> None:
        """Keep the type of the results.

        Raises:
            UserCodeError: It is no type of numbers.
        """
        super().__init__(**kwargs)
        self.out_type = tf.as_dtype(out_type)
        self.default_value = default_value
        if not (self.out_type.is_floating or self.out_type.is_integer):
            raise UserCodeError(
                "ToNumber makes integers or floats.", received={"out_type": self.out_type.name}
            )

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype != tf.string:
            return tf.cast(values, self.out_type)
        filled = tf.where(tf.equal(values, ""), str(self.default_value), values)
        return tf.strings.to_number(filled, self.out_type)


class _Leaving(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Leaves out what stands for a missing value."""

    def __init__(self, ignore_value: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_value = ignore_value
        self._convert_input_args = False

    def _is_there(self, values: tf.Tensor, *, of_floats: float | None) -> tf.Tensor:
        """Whether a value is there, for dense values, of their shape."""
        missing = self.ignore_value
        if missing is None:
            missing = "" if values.dtype == tf.string else -1
            if values.dtype.is_floating:
                missing = of_floats
        if missing is None:
            return tf.ones_like(values, tf.bool)
        return tf.not_equal(values, tf.cast(missing, values.dtype))


class ToSparse(_Leaving):
    """A sparse tensor of the values that are there.

    Missing is `ignore_value`; by default the empty text, the integer -1, the float 0.
    """

    def call(self, inputs: Any) -> tf.SparseTensor:
        """The values that are there, of a dense tensor; a sparse one as it is."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        is_there = self._is_there(inputs, of_floats=0.0)
        return tf.SparseTensor(
            tf.where(is_there), tf.boolean_mask(inputs, is_there), tf.shape(inputs, tf.int64)
        )


class ToRagged(_Leaving):
    """A ragged tensor of the values that are there.

    Missing is `ignore_value`; by default the empty text and the integer -1, and no float. Texts of
    shape (batch, 1) that hold several values are split first.
    """

    def __init__(self, sep: str = ",", ignore_value: Any = None, **kwargs: Any) -> None:
        """Keep what separates the values in a text."""
        super().__init__(ignore_value, **kwargs)
        self.sep = sep

    def call(self, inputs: Any) -> tf.RaggedTensor:
        """The values that are there, of a tensor of any kind."""
        ragged = inputs
        if isinstance(ragged, tf.SparseTensor):
            ragged = tf.RaggedTensor.from_sparse(ragged)
        if not isinstance(ragged, tf.RaggedTensor):
            ragged = tf.RaggedTensor.from_tensor(ragged)
        if ragged.dtype == tf.string:
            ragged = tf.strings.split(ragged, self.sep).merge_dims(1, -1)
        is_there = ragged.with_flat_values(self._is_there(ragged.flat_values, of_floats=None))
        return tf.ragged.boolean_mask(ragged, is_there)


class ConcatenateWithOffset(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Joins the ids of several columns; each column's are moved by an offset of its own."""

    def __init__(self, offsets: Sequence[int] | None, axis: int = -1, **kwargs: Any) -> None:
        """Keep the offsets, one a column; None moves nothing."""
        super().__init__(**kwargs)
        self.offsets = None if offsets is None else list(offsets)
        self.axis = axis
        self._convert_input_args = False

    def call(self, inputs: Any) -> Any:
        """All columns' ids, each column a tensor of the same kind."""
        columns = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        offsets = [0] * len(columns) if self.offsets is None else self.offsets
        if len(offsets) != len(columns):
            raise UserCodeError(
                "ConcatenateWithOffset needs one offset a column.",
                received=f"{len(offsets)} offsets, {len(columns)} columns",
            )
        moved = [_moved(*each) for each in zip(columns, offsets, strict=True)]
        if isinstance(moved[0], tf.SparseTensor):
            return tf.sparse.concat(self.axis, moved)
        return tf.concat(moved, self.axis)


def _moved(column: Any, offset: int) -> Any:
    if not offset:
        return column
    if isinstance(column, tf.SparseTensor):
        return column.with_values(column.values + tf.cast(offset, column.dtype))
    return column + tf.cast(offset, column.dtype)
