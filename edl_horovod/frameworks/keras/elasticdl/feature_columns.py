"""`tf.feature_column` in Keras 3, which has no `DenseFeatures`.

TensorFlow still has the columns. A layer gives them variables and hands them their features.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = ["DenseFeatures", "concatenated_categorical_column", "embedding_column"]

_columns = tf.__internal__.feature_column
_CategoricalColumn: Any = next(
    kind
    for kind in type(tf.feature_column.categorical_column_with_identity("any", 1)).__mro__
    if kind.__name__ == "CategoricalColumn"
)
"""The base class of all columns of ids, which TensorFlow does not export."""

embedding_column = tf.feature_column.embedding_column


class DenseFeatures(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """The dense tensor that feature columns make of a dict of features, as in Keras 2.

    Takes a dict of tensors by the names that the columns have; gives (batch, sum of the columns'
    sizes), the columns in the order of their names.
    """

    def __init__(self, feature_columns: Any, **kwargs: Any) -> None:
        """Keep the columns.

        Args:
            feature_columns: A dense column, or a list of such: numeric, bucketized, embedding or
                indicator columns.
            kwargs: Those of a Keras layer.

        Raises:
            UserCodeError: One is not dense.
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
                    "DenseFeatures takes dense columns.",
                    received=getattr(column, "name", repr(column)),
                    cure="Wrap a column of ids in embedding_column or indicator_column.",
                )
        # Not a list: Keras would look for layers in the named tuples that columns are.
        self._by_name = _Columns(sorted(columns, key=lambda column: str(column.name)))
        self._state = _State(self)

    def build(self, input_shape: Any) -> None:
        """Make the columns' variables."""
        for column in self._by_name.columns:
            column.create_state(self._state)

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """What the columns make of the features that they name."""
        if not isinstance(features, Mapping):
            raise UserCodeError(
                "DenseFeatures takes a dict of features by their names.",
                received=type(features).__name__,
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
        """(batch, sum of the columns' sizes)."""
        sizes = (column.variable_shape.num_elements() for column in self._by_name.columns)
        return (None, sum(sizes))


class _Columns:
    """Columns, out of the sight of Keras."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self.columns = tuple(columns)


class _State(_columns.StateManager):  # type: ignore[misc,name-defined]  # It ships no types.
    """The variables and tables of a layer's columns; see TensorFlow's `StateManager`."""

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
        # TensorFlow's variable, so that an embedding's gradient is that of some of its rows.
        return self._variables[feature_column.name, name].value

    def add_resource(self, feature_column: Any, name: str, resource: Any) -> None:
        self._resources[feature_column.name, name] = resource

    def has_resource(self, feature_column: Any, name: str) -> bool:
        return (feature_column.name, name) in self._resources

    def get_resource(self, feature_column: Any, name: str) -> Any:
        return self._resources[feature_column.name, name]


def concatenated_categorical_column(categorical_columns: list[Any]) -> Any:
    """A column of the ids of several: each column's ids are moved behind those before it.

    Raises:
        UserCodeError: They are no list of columns of ids.
    """
    for column in categorical_columns if isinstance(categorical_columns, list) else [None]:
        if not isinstance(column, _CategoricalColumn):
            raise UserCodeError(
                "concatenated_categorical_column takes a list of columns of ids.",
                received=repr(categorical_columns if column is None else column),
            )
    return _Concatenated(categorical_columns)


class _Concatenated(_CategoricalColumn):  # type: ignore[misc]  # TensorFlow ships no types.
    """See TensorFlow's `CategoricalColumn`."""

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
        moved = [
            one.with_values(_moved(tf.cast(one.values, tf.int64), start))
            for one, start in zip(ids, self._starts, strict=True)
        ]
        return tf.sparse.concat(-1, moved)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("Its model's file makes it anew.")

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> Self:
        raise NotImplementedError("Its model's file makes it anew.")


def _moved(ids: tf.Tensor, start: int) -> tf.Tensor:
    # A value that a vocabulary lacks is -1: moved, it would be the last of the column before.
    return tf.where(ids < 0, ids, ids + start)
