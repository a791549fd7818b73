"""A user's Keras model without side effects, and its metrics as numbers that add up."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.metrics import Measured, as_keras_metric, result_of
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = [
    "MetricSums",
    "at_least_float32",
    "metric_sums",
    "num_examples",
    "repeated",
    "running",
    "some_examples",
    "without_effects",
]


@contextlib.contextmanager
def without_effects(
    model: keras.Model,
    *,
    moving: Sequence[tf.Tensor] | None = None,
    metrics: Iterable[keras.metrics.Metric] = (),
) -> Iterator[keras.StatelessScope]:
    """Have nothing of a model change; what would have changed is what the scope has for it.

    `Model.stateless_call` does the same for the layer's `call` alone, without what `__call__` adds
    (`training` for models that do not declare it, casts); the scope is the public way to both. It
    also keeps the layers' extra losses, for `model.losses`.

    Args:
        model: Built.
        moving: Values to use for the non-trainable variables; None for their own.
        metrics: Those that begin at zero; built.
    """
    variables = model.non_trainable_variables
    values = [variable.value for variable in variables] if moving is None else moving
    mapping = [*zip(variables, values, strict=True)]
    mapping += [(variable, variable.value) for variable in model.trainable_variables]
    counted = [variable for metric in metrics for variable in metric.variables]
    mapping += [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in counted]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        yield scope


@contextlib.contextmanager
def running(doing: str, loaded: LoadedSpec, examples: tuple[Any, ...]) -> Iterator[None]:
    """Turn what an op of the user's functions says of its inputs into a `UserCodeError`.

    Shapes of which only the batch is unknown when a function is traced may not fit when it runs.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError:
        given = tf.nest.map_structure(tf.type_spec_from_value, examples)
        with user_code(f"{doing} of {loaded.label} for {given}", root=loaded.zoo):
            raise


@dataclass(frozen=True)
class MetricSums:
    """A metric of a batch, as numbers that add up over batches of any size and over ranks."""

    name: str
    sums: tf.Tensor
    """Shape (numbers,), float32."""
    metric: keras.metrics.Metric | None = None
    """Makes the value of them; None where the value is their mean over the examples."""
    is_per_batch: bool = False
    """Whether it counts a batch, not its examples; then `sums` is weighted by these."""
    shown: frozenset[str] | None = None
    """Names of those of its values that are shown; None for all."""

    @property
    def size(self) -> int:
        """How many numbers these are."""
        return int(self.sums.shape[0])

    def counted(self, sums: Any, count: Any) -> Any:
        """What it has counted, from the sums over a ring and the number of examples in them."""
        return sums / count if self.is_per_batch else sums

    def values(self, counted: Any, count: Any) -> dict[str, tf.Tensor]:
        """Its values by name, scalars, from what it has counted of so many examples."""
        if self.metric is None:
            return {self.name: counted[0] / count}
        result = result_of(self.metric, counted)
        named = result if isinstance(result, dict) else {self.name: result}
        return {k: value for k, value in named.items() if self.shown is None or k in self.shown}


def metric_sums(
    loaded: LoadedSpec, mode: Mode, outputs: Any, labels: Any, weights: Any, count: tf.Tensor
) -> list[MetricSums]:
    """The spec's metrics as sums over a batch's examples.

    Args:
        loaded: The user's spec.
        mode: Handed to `create_metrics`.
        outputs: What the model returned.
        labels: The batch's labels.
        weights: Its weights, for metrics that take `sample_weight`; None for none.
        count: Number of examples, a float scalar.

    Raises:
        UserCodeError: `create_metrics` returned something other than a dict of scalars, of one
            value an example, or (not in training) of Keras metrics that add up.
    """
    available = {"mode": mode, "outputs": outputs, "labels": labels, "predictions": outputs}
    available["sample_weight"] = weights
    metrics = call_declared(loaded.spec.create_metrics, available) or {}
    name = f"create_metrics of {loaded.label}"
    if not isinstance(metrics, dict):
        raise UserCodeError(f"{name} must return a dict.", received=type(metrics).__name__)
    found = []
    for key in sorted(metrics):
        value = metrics[key]
        if metric := as_keras_metric(value):
            value = Measured(metric, labels, outputs, f"{key} of {name}")
        if isinstance(value, Measured):
            _require_evaluation(value, mode)
            found.append(MetricSums(key, value.counts(), value.metric))
        else:
            found.append(MetricSums(key, _mean_sum(value, count, f"{key} of {name}")))
    return found


def num_examples(features: Any) -> tf.Tensor:
    """How many examples a batch has, a scalar."""
    some = tf.nest.flatten(features)[0]
    if isinstance(some, tf.RaggedTensor):
        return tf.cast(some.nrows(), tf.int32)
    if isinstance(some, tf.SparseTensor):
        return tf.cast(some.dense_shape[0], tf.int32)
    return tf.shape(some)[0]


def some_examples(batch: Any, first: Any, last: Any) -> Any:
    """Those of a batch's examples from one up to another, which is left out."""

    def some(value: Any) -> Any:
        if not isinstance(value, tf.SparseTensor):
            return value[first:last]
        begin, end = tf.cast(first, tf.int64), tf.cast(last, tf.int64)
        rest = value.dense_shape[1:]
        size = tf.concat([[end - begin], rest], 0)
        return tf.sparse.slice(value, tf.concat([[begin], tf.zeros_like(rest)], 0), size)

    return tf.nest.map_structure(some, batch)


def repeated(batch: Any, times: int) -> Any:
    """The examples of a batch, several times one after the other."""

    def again(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.concat(0, [value] * times)
        return tf.concat([value] * times, 0)

    return tf.nest.map_structure(again, batch)


def at_least_float32(outputs: Any) -> Any:
    """A model's outputs, in float32 where its layers compute in less."""
    return tf.nest.map_structure(_at_least_float32, outputs)


def _require_evaluation(measured: Measured, mode: Mode) -> None:
    if mode is Mode.TRAINING:
        raise UserCodeError(
            f"{measured.label} is a Keras metric, which needs a whole data set and is computed in"
            " evaluations only.",
            received=f"{type(measured.metric).__name__} in mode training",
            cure="Return it where mode is Mode.EVALUATION.",
        )


def _mean_sum(value: Any, count: tf.Tensor, label: str) -> tf.Tensor:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    if value.shape.rank is None:
        raise UserCodeError(
            f"{label} must be a scalar, one value an example, or a Keras metric.",
            received=f"shape {value.shape}",
        )
    # Those of an example, as of shape (examples, 1), count as their mean.
    value = tf.reduce_mean(value, list(range(1, value.shape.rank)))
    return tf.reshape(value * count if value.shape.rank == 0 else tf.reduce_sum(value), [1])


def _at_least_float32(value: Any) -> Any:
    is_short = value.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(value, tf.float32) if is_short else value
