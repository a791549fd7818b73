"""Call a user's Keras model without side effects, on a batch or on parts of it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.random.seed_generator import global_seed_generator
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.metrics import zeros_of
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec


class Scope(keras.StatelessScope):  # type: ignore[misc]  # Its types are not seen by mypy.
    """Holds the values that variables would get, and knows which variables these are."""

    def __init__(self, mapping: Iterable[tuple[keras.Variable, Any]]) -> None:
        """Start with the values of some variables."""
        mapping = list(mapping)
        super().__init__(state_mapping=mapping, collect_losses=True)
        self._begun_with = {id(variable) for variable, _ in mapping}
        self._updated: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Hold a new value."""
        self._updated[id(update[0])] = update[0]
        super().add_update(update)

    def require_usable(self, model: keras.Model, label: str) -> None:
        """Refuse updates that a step of a ring would lose.

        Args:
            model: The model, whose forward pass and loss were computed in this scope.
            label: The spec.

        Raises:
            UserCodeError: They assigned variables that the optimizer changes, too, or that neither
                the model nor its metrics have.
        """
        trainable = {id(variable) for variable in model.trainable_variables}
        if assigned := [v.path for key, v in self._updated.items() if key in trainable]:
            raise UserCodeError(
                f"The forward pass of the model of {label} assigns variables that are trained.",
                received=", ".join(assigned),
                hint="A ring updates variables after all ranks have computed their gradients. Keep"
                " what a pass assigns in variables with trainable=False, and compute what it uses"
                " without assigning it. SpectralNormalization of Keras assigns its layer's kernel"
                " in training.",
            )
        known = self._begun_with | {id(v) for metric in model.metrics for v in metric.variables}
        if foreign := [v.path for key, v in self._updated.items() if key not in known]:
            raise UserCodeError(
                f"The forward pass or the loss of {label} assigns variables that the model does not"
                " have, so the ranks of a ring would not keep them.",
                received=", ".join(foreign),
                hint="Make them attributes of the model: self.add_weight(trainable=False),"
                " self.seed_generator = keras.random.SeedGenerator(seed), or a metric.",
            )


def state_variables(model: keras.Model) -> list[keras.Variable]:
    """The variables that a forward pass may assign.

    Those of the model that are not trained, and the state of the generator that `keras.random`
    uses where a layer has none of its own.
    """
    return [*model.non_trainable_variables, global_seed_generator().state]


@contextlib.contextmanager
def without_effects(
    model: keras.Model,
    *,
    non_trainable: Sequence[tf.Tensor] | None = None,
    metrics: Iterable[keras.metrics.Metric] = (),
) -> Iterator[Scope]:
    """Keep the model's variables unchanged; the scope holds the values that they would get.

    `Model.stateless_call` only wraps the layer's `call`, without the additions of `__call__`
    (casts, `training` for models that do not declare it). The scope is the public API that covers
    both. It also collects the layers' extra losses, for `model.losses`.

    Args:
        model: The built model.
        non_trainable: Values to use for the `state_variables`; None for their current values.
        metrics: Built metrics whose variables are 0 at the start of the scope.
    """
    variables = state_variables(model)
    values = [variable.value for variable in variables] if non_trainable is None else non_trainable
    mapping = [*zip(variables, values, strict=True)]
    mapping += [(variable, variable.value) for variable in model.trainable_variables]
    for metric in metrics:
        mapping += zip(metric.variables, zeros_of(metric), strict=True)
    with Scope(mapping) as scope:
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
    """Cast a model's outputs of less than 32 bits to float32; they keep their masks."""

    def cast(value: Any) -> Any:
        if value.dtype not in (tf.float16, tf.bfloat16):
            return value
        precise = tf.cast(value, tf.float32)
        if (mask := get_keras_mask(value)) is not None:
            set_keras_mask(precise, mask)
        return precise

    return tf.nest.map_structure(cast, outputs)
