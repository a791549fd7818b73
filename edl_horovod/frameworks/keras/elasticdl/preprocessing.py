"""ElasticDL's preprocessing layers, which turn raw columns into numbers and ids.

Names, arguments and results follow ElasticDL's tutorial of its preprocessing layers
(https://github.com/sql-machine-learning/elasticdl, `docs/tutorials/preprocessing_tutorial.md`).
Each layer takes a dense, sparse or ragged tensor, and most return one of the same kind and shape.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError


class _Elementwise(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """A layer without weights that transforms each value separately."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False  # Strings and integers must not be cast to floats.

    def call(self, inputs: Any) -> Any:
        """Transform the values and keep the kind and shape of their tensor."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self._transform(inputs.values))
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._transform(inputs.flat_values))
        return self._transform(inputs)

    @abstractmethod
    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        """Transform a dense tensor of values."""


class Normalizer(_Elementwise):
    """Computes `(x - subtractor) / divisor` in float32."""

    def __init__(self, subtractor: float, divisor: float, **kwargs: Any) -> None:
        """Check the divisor.

        Raises:
            UserCodeError: The divisor is 0.
        """
        if divisor == 0:
            raise UserCodeError(
                "Normalizer cannot divide by 0.",
                received={"divisor": divisor},
                hint="Use the range or the standard deviation of a column that is not constant.",
            )
        super().__init__(**kwargs)
        self.subtractor = subtractor
        self.divisor = divisor

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        return (tf.cast(values, tf.float32) - self.subtractor) / self.divisor


class Discretization(_Elementwise):
    """Maps a value to the index of its range, int64; each boundary starts a range."""

    def __init__(self, bins: Sequence[float], **kwargs: Any) -> None:
        """Set the boundaries, in ascending order, of `len(bins) + 1` ranges."""
        super().__init__(**kwargs)
        self.bins = list(bins)

    def num_bins(self) -> int:
        """Return the number of ranges."""
        return len(self.bins) + 1

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        boundaries = [float(boundary) for boundary in self.bins]
        return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=boundaries), tf.int64)


class RoundIdentity(_Elementwise):
    """Computes `round(x)`, int64; values outside `[0, num_buckets)` become `default_value`."""

    def __init__(self, num_buckets: int, default_value: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_buckets = num_buckets
        self.default_value = default_value

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        whole = tf.cast(tf.round(values), tf.int64)
        is_inside = (whole >= 0) & (whole < self.num_buckets)
        return tf.where(is_inside, whole, tf.cast(self.default_value, tf.int64))


class LogRound(RoundIdentity):
    """Computes `round(log(x))`, int64; values outside `[0, num_bins)` become `default_value`."""

    def __init__(
        self, num_bins: int, default_value: int = 0, base: float | None = None, **kwargs: Any
    ) -> None:
        """Set the number of results and the base of the logarithm; None means e."""
        super().__init__(num_bins, default_value, **kwargs)
        self.num_bins = num_bins
        self.base = base

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        # In float64 for exact powers of the base: log(8) / log(2) is below 3 in float32.
        logarithms = tf.math.log(tf.cast(values, tf.float64))
        if self.base is not None:
            logarithms /= tf.math.log(tf.constant(self.base, tf.float64))
        is_number = tf.math.is_finite(logarithms)
        return super()._transform(tf.where(is_number, logarithms, tf.constant(-1.0, tf.float64)))


class Hashing(_Elementwise):
    """Computes `hash(x) % num_bins` of a string or an integer as a string (FarmHash64), int64."""

    def __init__(self, num_bins: int, **kwargs: Any) -> None:
        """Check the number of bins.

        Raises:
            UserCodeError: `num_bins` is less than 1.
        """
        if num_bins is None or num_bins < 1:
            raise UserCodeError(
                "num_bins of Hashing must be 1 or more.", received={"num_bins": num_bins}
            )
        super().__init__(**kwargs)
        self.num_bins = num_bins

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        texts = values if values.dtype == tf.string else tf.strings.as_string(values)
        return tf.strings.to_hash_bucket_fast(texts, self.num_bins)


class IndexLookup(_Elementwise):
    """Maps a string to its index in a vocabulary, int64; other strings get the indices after it."""

    def __init__(
        self, vocabulary: Sequence[str] | str, num_oov_tokens: int = 1, **kwargs: Any
    ) -> None:
        """Create the lookup table.

        Args:
            vocabulary: The strings, or the path of a text file with one string a line.
            num_oov_tokens: The number of indices, 1 or more, over which the hashes of other
                strings are distributed.
            kwargs: Passed to `keras.layers.Layer`.

        Raises:
            UserCodeError: The vocabulary is empty or contains a string twice.
        """
        super().__init__(**kwargs)
        texts = (
            [line.strip() for line in Path(vocabulary).read_text("utf-8").splitlines()]
            if isinstance(vocabulary, str)
            else list(vocabulary)
        )
        duplicates = sorted(text for text, times in Counter(texts).items() if times > 1)
        if duplicates or not texts:
            repeated = f"{', '.join(map(repr, duplicates))} more than once"
            raise UserCodeError(
                "The vocabulary of IndexLookup must not be empty or contain a string twice.",
                received=repeated if duplicates else "an empty vocabulary",
            )
        self.vocabulary = texts
        self.num_oov_tokens = num_oov_tokens
        indices = tf.range(len(texts), dtype=tf.int64)
        self._table = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(texts), indices), num_oov_tokens
        )

    def vocab_size(self) -> int:
        """Return the number of indices, including those of out-of-vocabulary strings."""
        return len(self.vocabulary) + self.num_oov_tokens

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        return self._table.lookup(values)


class ToNumber(_Elementwise):
    """Converts strings and numbers to a numeric type; an empty string becomes the default."""

    def __init__(self, out_type: Any, default_value: float, **kwargs: Any) -> None:
        """Check the type of the results.

        Raises:
            UserCodeError: The type is not numeric.
        """
        super().__init__(**kwargs)
        self.out_type = tf.as_dtype(out_type)
        self.default_value = default_value
        if not (self.out_type.is_floating or self.out_type.is_integer):
            raise UserCodeError(
                "out_type of ToNumber must be an integer or a float type.",
                received={"out_type": self.out_type.name},
            )

    def _transform(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype != tf.string:
            return tf.cast(values, self.out_type)
        filled = tf.where(tf.equal(values, ""), str(self.default_value), values)
        return tf.strings.to_number(filled, self.out_type)


class _DroppingMissing(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """A layer that drops missing values."""

    def __init__(self, ignore_value: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_value = ignore_value
        self._convert_input_args = False

    def _is_present(self, values: tf.Tensor, *, missing_float: float | None) -> tf.Tensor:
        """Compute a mask of the values that are not missing, for dense values."""
        missing = self.ignore_value
        if missing is None:
            missing = "" if values.dtype == tf.string else -1
            if values.dtype.is_floating:
                missing = missing_float
        if missing is None:
            return tf.ones_like(values, tf.bool)
        return tf.not_equal(values, tf.cast(missing, values.dtype))


class ToSparse(_DroppingMissing):
    """Converts a dense tensor to a sparse one without its missing values.

    A missing value equals `ignore_value`, by default the empty string, the integer -1, or 0.0.
    """

    def call(self, inputs: Any) -> tf.SparseTensor:
        """Convert a dense tensor; return a sparse tensor unchanged."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        is_present = self._is_present(inputs, missing_float=0.0)
        return tf.SparseTensor(
            tf.where(is_present), tf.boolean_mask(inputs, is_present), tf.shape(inputs, tf.int64)
        )


class ToRagged(_DroppingMissing):
    """Converts a tensor to a ragged one without its missing values.

    A missing value equals `ignore_value`, by default the empty string or the integer -1; floats
    have no default. Strings are first split at `sep`.
    """

    def __init__(self, sep: str = ",", ignore_value: Any = None, **kwargs: Any) -> None:
        """Set the separator of the values within a string."""
        super().__init__(ignore_value, **kwargs)
        self.sep = sep

    def call(self, inputs: Any) -> tf.RaggedTensor:
        """Convert a dense, sparse or ragged tensor."""
        ragged = inputs
        if isinstance(ragged, tf.SparseTensor):
            ragged = tf.RaggedTensor.from_sparse(ragged)
        if not isinstance(ragged, tf.RaggedTensor):
            ragged = tf.RaggedTensor.from_tensor(ragged)
        if ragged.dtype == tf.string:
            ragged = tf.strings.split(ragged, self.sep).merge_dims(1, -1)
        is_present = ragged.with_flat_values(
            self._is_present(ragged.flat_values, missing_float=None)
        )
        return tf.ragged.boolean_mask(ragged, is_present)


class ConcatenateWithOffset(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Concatenates the ids of several columns after adding an offset for each column."""

    def __init__(self, offsets: Sequence[int] | None, axis: int = -1, **kwargs: Any) -> None:
        """Set the offsets, one for each column; None means no offsets."""
        super().__init__(**kwargs)
        self.offsets = None if offsets is None else list(offsets)
        self.axis = axis
        self._convert_input_args = False

    def call(self, inputs: Any) -> Any:
        """Concatenate the columns' ids, which are tensors of the same kind."""
        columns = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        offsets = [0] * len(columns) if self.offsets is None else self.offsets
        if len(offsets) != len(columns):
            raise UserCodeError(
                "ConcatenateWithOffset needs one offset for each column.",
                received=f"{len(offsets)} offsets, {len(columns)} columns",
            )
        offset_ids = [
            _add_offset(column, offset) for column, offset in zip(columns, offsets, strict=True)
        ]
        if isinstance(offset_ids[0], tf.SparseTensor):
            return tf.sparse.concat(self.axis, offset_ids)
        return tf.concat(offset_ids, self.axis)


def _add_offset(column: Any, offset: int) -> Any:
    if not offset:
        return column
    if isinstance(column, tf.SparseTensor):
        return column.with_values(column.values + tf.cast(offset, column.dtype))
    return column + tf.cast(offset, column.dtype)
