"""Embedding layers as ElasticDL's model files call them.

Their tables lie on every rank. ElasticDL's own grow on its parameter servers, which are not here.
"""

from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = ["Embedding", "SparseEmbedding"]

_COMBINERS = ("mean", "sqrtn", "sum")


class SparseEmbedding(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """One vector an example: the vectors of its ids combined; zeros where it has none.

    Takes a sparse or ragged tensor of ids, shape (batch, ids of an example); gives (batch,
    output_dim).
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str = "mean",
        **kwargs: Any,
    ) -> None:
        """Keep the size of the table.

        Args:
            input_dim: How many ids there are; an id is below it.
            output_dim: Size of a vector.
            embeddings_initializer: A Keras initializer, or the name of one.
            combiner: "mean", "sum", or "sqrtn" (the sum over the root of their number).
            kwargs: Those of a Keras layer.

        Raises:
            UserCodeError: There is no such combiner, or no number of ids.
        """
        super().__init__(**kwargs)
        if combiner not in _COMBINERS:
            raise UserCodeError(
                f"{type(self).__name__} combines by one of {', '.join(_COMBINERS)}.",
                received={"combiner": combiner},
            )
        if not input_dim:
            raise _without_size(type(self).__name__)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.combiner = combiner
        self._initializer = keras.initializers.get(embeddings_initializer)
        self._convert_input_args = False

    def build(self, input_shape: Any) -> None:
        """Make the table."""
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self._initializer,
            name="embeddings",
        )

    def call(self, inputs: Any) -> tf.Tensor:
        """The combined vectors of sparse or ragged ids."""
        ids = inputs.to_sparse() if isinstance(inputs, tf.RaggedTensor) else inputs
        if not isinstance(ids, tf.SparseTensor):
            raise UserCodeError(
                f"{type(self).__name__} takes a sparse or a ragged tensor of ids.",
                received=f"a dense one of shape {ids.shape}",
                cure="Put ToSparse or ToRagged before it, or take Embedding.",
            )
        vectors = tf.nn.safe_embedding_lookup_sparse(
            self.embeddings.value, tf.cast(ids, tf.int64), combiner=self.combiner
        )
        return tf.ensure_shape(vectors, (None, self.output_dim))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """(batch, output_dim)."""
        return (input_shape[0], self.output_dim)


class Embedding(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Vectors of ids: each id's own, or with a combiner one an example.

    Without a combiner a dense tensor of ids, shape (batch, ids), gives (batch, ids, output_dim).
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
        """Keep the size of the table.

        Args:
            output_dim: Size of a vector.
            input_dim: How many ids there are. ElasticDL takes none; here it is needed.
            embeddings_initializer: A Keras initializer, or the name of one.
            mask_zero: Whether the id 0 stands for none, and is masked.
            input_length: Means nothing here, as in Keras 3.
            combiner: As of `SparseEmbedding`; None gives the vector of each id.
            kwargs: Those of a Keras layer.

        Raises:
            UserCodeError: There is no such combiner, or no number of ids.
        """
        super().__init__(**kwargs)
        if not input_dim:
            raise _without_size(type(self).__name__)
        self.supports_masking = mask_zero
        self._convert_input_args = False
        made: Any = (
            keras.layers.Embedding(
                input_dim, output_dim, embeddings_initializer, mask_zero=mask_zero
            )
            if combiner is None
            else SparseEmbedding(input_dim, output_dim, embeddings_initializer, combiner)
        )
        self._layer = made

    def call(self, inputs: Any) -> tf.Tensor:
        """The vectors of ids."""
        return self._layer(inputs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Where an id is not 0, if `mask_zero`."""
        return self._layer.compute_mask(inputs, previous_mask)


def _without_size(kind: str) -> UserCodeError:
    return UserCodeError(
        f"{kind} without input_dim grows on ElasticDL's parameter servers, which are not here: the"
        " ranks hold the whole table.",
        cure="Give input_dim, the largest id + 1, or put a Hashing layer before it.",
    )
