"""Support `tf.feature_column` in Keras 3, which has no `DenseFeatures`.

TensorFlow still has the columns. The layer here creates their variables and passes them features.
"""

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

_columns = tf.__internal__.feature_column
_CategoricalColumn: Any = next(
    base
    for base in type(tf.feature_column.categorical_column_with_identity("any", 1)).__mro__
    if base.__name__ == "CategoricalColumn"
)
"""The base class of all categorical columns, which TensorFlow does not export."""

embedding_column = tf.feature_column.embedding_column


class DenseFeatures(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Computes a dense tensor from a dict of features with feature columns, as in Keras 2.

    Takes a dict of tensors by the features' names and returns shape (batch, sum of the columns'
    sizes), with the columns in the order of their names.
    """

    def __init__(self, feature_columns: Any, **kwargs: Any) -> None:
        """Sort and check the columns.

        Args:
            feature_columns: A dense column or a list of them: numeric, bucketized, embedding or
                indicator columns.
            kwargs: Passed to `keras.layers.Layer`.

        Raises:
            UserCodeError: A column is not dense.
        """
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        columns = (
            list(feature_columns)
            if isinstance(feature_columns, Sequence) and not hasattr(feature_columns, "_fields")
            else [feature_columns]
        )
        for column in columns:
            if not isinstance(column, _columns.DenseColumn):
                raise UserCodeError(
                    "DenseFeatures only takes dense columns.",
                    received=getattr(column, "name", repr(column)),
                    hint="Wrap a categorical column in embedding_column or indicator_column.",
                )
        # Wrapped, because Keras would search a list of columns, which are named tuples, for layers.
        columns.sort(key=lambda column: str(column.name))
        self._by_name = SimpleNamespace(columns=columns)
        self._state = _State(self)

    def build(self, input_shape: Any) -> None:
        """Create the columns' variables."""
        for column in self._by_name.columns:
            column.create_state(self._state)

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Compute and concatenate the columns' dense tensors."""
        if not isinstance(features, Mapping):
            raise UserCodeError(
                "DenseFeatures takes a dict of features by name.", received=type(features).__name__
            )
        cache = _columns.FeatureTransformationCache(dict(features))
        parts = [
            tf.reshape(
                column.get_dense_tensor(cache, self._state),
                (-1, column.variable_shape.num_elements()),
            )
            for column in self._by_name.columns
        ]
        return tf.concat(parts, axis=-1)

    def compute_output_shape(self, input_shape: Any) -> tuple[None, int]:
        """Return (batch, sum of the columns' sizes)."""
        sizes = (column.variable_shape.num_elements() for column in self._by_name.columns)
        return (None, sum(sizes))


class _State(_columns.StateManager):  # type: ignore[misc,name-defined]  # It ships no types.
    """The variables and lookup tables of a layer's columns."""

    def __init__(self, layer: DenseFeatures) -> None:
        self._layer = layer
        self._variables: dict[tuple[str, str], keras.Variable] = {}
        self._resources: dict[tuple[str, str], Any] = {}

    def create_variable(
        self,
        feature_column: Any,
        name: str,
        shape: Sequence[int],
        dtype: Any = None,
        trainable: bool = True,
        use_resource: bool = True,
        initializer: Any = None,
    ) -> None:
        def initial(shape: Sequence[int], dtype: Any = None) -> tf.Tensor:
            return initializer(shape, dtype=tf.as_dtype(dtype))

        self._variables[feature_column.name, name] = self._layer.add_weight(
            shape=tuple(shape),
            dtype=tf.as_dtype(dtype or tf.float32).name,
            initializer=None if initializer is None else initial,
            trainable=trainable,
            name=f"{feature_column.name}_{name}",
        )

    def get_variable(self, feature_column: Any, name: str) -> Any:
        # TensorFlow's variable, so that an embedding's gradient is sparse.
        return self._variables[feature_column.name, name].value

    def add_resource(self, feature_column: Any, name: str, resource: Any) -> None:
        self._resources[feature_column.name, name] = resource

    def has_resource(self, feature_column: Any, name: str) -> bool:
        return (feature_column.name, name) in self._resources

    def get_resource(self, feature_column: Any, name: str) -> Any:
        return self._resources[feature_column.name, name]


def concatenated_categorical_column(categorical_columns: list[Any]) -> Any:
    """Concatenate categorical columns: each column's ids are offset by the sizes before it.

    Raises:
        UserCodeError: The argument is not a list of categorical columns.
    """
    for column in categorical_columns if isinstance(categorical_columns, list) else [None]:
        if not isinstance(column, _CategoricalColumn):
            raise UserCodeError(
                "concatenated_categorical_column takes a list of categorical columns.",
                received=repr(categorical_columns if column is None else column),
            )
    return _Concatenated(categorical_columns)


class _Concatenated(_CategoricalColumn):  # type: ignore[misc]  # TensorFlow ships no types.
    """A categorical column with the ids of several columns, each with its own range of ids."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self._parts = tuple(columns)
        sizes = [int(column.num_buckets) for column in columns]
        *self._starts, self._size = itertools.accumulate(sizes, initial=0)

    @property
    def _is_v2_column(self) -> bool:
        return all(column._is_v2_column for column in self._parts)

    @property
    def name(self) -> str:
        return "_and_".join(str(column.name) for column in self._parts)

    @property
    def num_buckets(self) -> int:
        return self._size

    @property
    def parents(self) -> list[Any]:
        return list(self._parts)

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {
            name: feature
            for column in self._parts
            for name, feature in column.parse_example_spec.items()
        }

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> tf.SparseTensor:
        ids = [
            column.get_sparse_tensors(transformation_cache, state_manager).id_tensor
            for column in self._parts
        ]
        offset_ids = [
            tensor.with_values(_add_offset(tf.cast(tensor.values, tf.int64), start))
            for tensor, start in zip(ids, self._starts, strict=True)
        ]
        return tf.sparse.concat(-1, offset_ids)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("The model file creates this column again.")

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> Self:
        raise NotImplementedError("The model file creates this column again.")


def _add_offset(ids: tf.Tensor, start: int) -> tf.Tensor:
    # An out-of-vocabulary value is -1; with an offset, it would be an id of the previous column.
    return tf.where(ids < 0, ids, ids + start)
