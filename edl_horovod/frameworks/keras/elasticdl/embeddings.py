"""Embedding layers with the interface that ElasticDL's model files expect.

Every rank holds the whole table. ElasticDL's tables grow on parameter servers, which do not exist
here.
"""

from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

_COMBINERS = ("mean", "sqrtn", "sum")


class SparseEmbedding(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Combines the vectors of an example's ids into one vector; zeros for no ids.

    Takes a sparse or ragged tensor of ids, shape (batch, ids of an example), and returns shape
    (batch, output_dim).
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str = "mean",
        **kwargs: Any,
    ) -> None:
        """Set the size of the table, which `build` creates.

        Args:
            input_dim: The number of ids, which range from 0 to `input_dim - 1`.
            output_dim: The size of a vector.
            embeddings_initializer: A Keras initializer, or its name.
            combiner: "mean", "sum", or "sqrtn" (the sum divided by the square root of the number
                of ids).
            kwargs: Passed to `keras.layers.Layer`.

        Raises:
            UserCodeError: The combiner is unknown, or `input_dim` is missing.
        """
        super().__init__(**kwargs)
        if combiner not in _COMBINERS:
            raise UserCodeError(
                f"The combiner of {type(self).__name__} must be one of {', '.join(_COMBINERS)}.",
                received={"combiner": combiner},
            )
        if not input_dim:
            raise _missing_size(type(self).__name__)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.combiner = combiner
        self._initializer = keras.initializers.get(embeddings_initializer)
        self._convert_input_args = False

    def build(self, input_shape: Any) -> None:
        """Create the table."""
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self._initializer,
            name="embeddings",
        )

    def call(self, inputs: Any) -> tf.Tensor:
        """Combine the vectors of sparse or ragged ids."""
        ids = inputs.to_sparse() if isinstance(inputs, tf.RaggedTensor) else inputs
        if not isinstance(ids, tf.SparseTensor):
            raise UserCodeError(
                f"{type(self).__name__} takes a sparse or a ragged tensor of ids.",
                received=f"a dense tensor of shape {ids.shape}",
                hint="Insert ToSparse or ToRagged before it, or use Embedding.",
            )
        vectors = tf.nn.safe_embedding_lookup_sparse(
            self.embeddings.value, tf.cast(ids, tf.int64), combiner=self.combiner
        )
        return tf.ensure_shape(vectors, (None, self.output_dim))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """Return (batch, output_dim)."""
        return (input_shape[0], self.output_dim)


class Embedding(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Looks up the vector of each id; with a combiner, one vector for each example.

    Without a combiner, dense ids of shape (batch, ids) give shape (batch, ids, output_dim).
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        input_length: int | None = None,
        combiner: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Create the layer that looks up the vectors.

        Args:
            output_dim: The size of a vector.
            input_dim: The number of ids. Optional in ElasticDL but required here.
            embeddings_initializer: A Keras initializer, or its name.
            mask_zero: Whether the id 0 is padding and is masked.
            input_length: Ignored, as in Keras 3.
            combiner: As for `SparseEmbedding`; None returns the vector of each id.
            kwargs: Passed to `keras.layers.Layer`.

        Raises:
            UserCodeError: The combiner is unknown, or `input_dim` is missing.
        """
        super().__init__(**kwargs)
        if not input_dim:
            raise _missing_size(type(self).__name__)
        self.supports_masking = mask_zero
        self._convert_input_args = False
        self._layer: Any = (
            keras.layers.Embedding(
                input_dim, output_dim, embeddings_initializer, mask_zero=mask_zero
            )
            if combiner is None
            else SparseEmbedding(input_dim, output_dim, embeddings_initializer, combiner)
        )

    def call(self, inputs: Any) -> tf.Tensor:
        """Look up the vectors of ids."""
        return self._layer(inputs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Mask the ids that are 0 if `mask_zero` is set."""
        return self._layer.compute_mask(inputs, previous_mask)


def _missing_size(class_name: str) -> UserCodeError:
    return UserCodeError(
        f"{class_name} needs input_dim. In ElasticDL the table may grow on parameter servers, but"
        " here every rank holds the whole table.",
        hint="Set input_dim to the largest id + 1, or insert a Hashing layer before it.",
    )
