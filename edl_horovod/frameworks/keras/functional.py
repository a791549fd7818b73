"""Call a user's Keras model without side effects, on a batch or on parts of it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.frameworks.keras.metrics import zeros_of
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec


@contextlib.contextmanager
def without_effects(
    model: keras.Model,
    *,
    non_trainable: Sequence[tf.Tensor] | None = None,
    metrics: Iterable[keras.metrics.Metric] = (),
) -> Iterator[keras.StatelessScope]:
    """Keep the model's variables unchanged; the scope holds the values that they would get.

    `Model.stateless_call` only wraps the layer's `call`, without the additions of `__call__`
    (casts, `training` for models that do not declare it). The scope is the public API that covers
    both. It also collects the layers' extra losses, for `model.losses`.

    Args:
        model: The built model.
        non_trainable: Values to use for the non-trainable variables; None for their current values.
        metrics: Built metrics whose variables are 0 at the start of the scope.
    """
    variables = model.non_trainable_variables
    values = [variable.value for variable in variables] if non_trainable is None else non_trainable
    mapping = [*zip(variables, values, strict=True)]
    mapping += [(variable, variable.value) for variable in model.trainable_variables]
    for metric in metrics:
        mapping += zip(metric.variables, zeros_of(metric), strict=True)
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        yield scope


@contextlib.contextmanager
def running(doing: str, loaded: LoadedSpec, examples: tuple[Any, ...]) -> Iterator[None]:
    """Raise a `UserCodeError` for an op of the user's functions that rejects its inputs.

    Shapes with unknown sizes may be valid when a function is traced and fail when it runs.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError:
        specs = tf.nest.map_structure(tf.type_spec_from_value, examples)
        with user_code(f"{doing} of {loaded.label} for {specs}", root=loaded.zoo):
            raise


def traced(function: Callable[..., Any], *signature: Any) -> Any:
    """Trace a function for `tf.TypeSpec`s, as a `tf.types.experimental.ConcreteFunction`."""
    return tf.function(function, autograph=False).get_concrete_function(*signature)


def num_examples(features: Any) -> tf.Tensor:
    """Compute the number of examples in a batch, an int32 scalar."""
    first = tf.nest.flatten(features)[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def some_examples(batch: Any, first: Any, last: Any) -> Any:
    """Slice a batch's examples from index `first` up to, but excluding, `last`."""

    def sliced(value: Any) -> Any:
        if not isinstance(value, tf.SparseTensor):
            return value[first:last]
        begin, end = tf.cast(first, tf.int64), tf.cast(last, tf.int64)
        rest = value.dense_shape[1:]
        size = tf.concat([[end - begin], rest], 0)
        return tf.sparse.slice(value, tf.concat([[begin], tf.zeros_like(rest)], 0), size)

    return tf.nest.map_structure(sliced, batch)


def take_examples(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    """Return the examples of a batch that have these indices."""

    def taken(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.concat(0, [some_examples(value, row, row + 1) for row in rows])
        return None if value is None else tf.gather(value, rows)

    features, labels, weights = (
        tf.nest.map_structure(taken, part) for part in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, len(rows), weights)


def repeated(batch: Any, times: int) -> Any:
    """Concatenate `times` copies of a batch."""

    def tiled(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.concat(0, [value] * times)
        return tf.concat([value] * times, 0)

    return tf.nest.map_structure(tiled, batch)


def at_least_float32(outputs: Any) -> Any:
    """Cast a model's outputs of less than 32 bits to float32."""

    def cast(value: Any) -> Any:
        is_short = value.dtype in (tf.float16, tf.bfloat16)
        return tf.cast(value, tf.float32) if is_short else value

    return tf.nest.map_structure(cast, outputs)
