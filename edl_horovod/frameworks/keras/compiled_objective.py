"""The loss and metrics that a Keras model defines: by `compile`, or by overridden methods.

They are called as `fit` and `evaluate` call them. The state that the model's metrics get in a call
is read from the call's scope and summed over the ring.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.functional import MetricSums, at_least_float32, without_effects
from edl_horovod.frameworks.keras.metrics import (
    as_tensors,
    random_examples,
    require_number,
    result_of,
    row_of,
)
from edl_horovod.frameworks.values import is_sum_over_batch

__all__ = ["CompiledObjective", "any_number", "overrides", "sum_over_batch"]

_TRIED_EXAMPLES = (3, 5)
_LOSS = "loss"
"""The name of the loss in reports. Its value is computed outside of this module."""


def overrides(model: keras.Model, method: str) -> bool:
    """Whether a model overrides a method of Keras."""
    definer = next(base for base in type(model).__mro__ if method in vars(base))
    return method in vars(model) or definer.__module__.partition(".")[0] != "keras"


class CompiledObjective:
    """The `compute_loss` and `compute_metrics` of a model, overridden or Keras' own."""

    def __init__(
        self, model: keras.Model, element_spec: tuple[Any, ...], *, has_loss: bool, label: str
    ) -> None:
        """Create the variables that Keras creates at the first batch, and check what adds up.

        Args:
            model: The built model.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            has_loss: Whether to use the model's loss. If false, it need not have one.
            label: Name of the model in messages.

        Raises:
            UserCodeError: The state of a metric, or the loss, cannot be summed over a ring.
        """
        self._model = model
        self._label = label
        self._has_loss = has_loss
        self._takes_training = "training" in inspect.signature(model.compute_loss).parameters
        self._reported: frozenset[str] = frozenset()
        arrays = random_examples(element_spec, sum(_TRIED_EXAMPLES), np.random.default_rng(0))
        examples = as_tensors(arrays)
        features, labels, weights = (*examples, None)[:3]
        with _restored(model):
            outputs = at_least_float32(model(features, training=False))
            if has_loss:
                self.loss(features, labels, outputs, weights, training=False)
            returned = model.compute_metrics(features, labels, outputs, sample_weight=weights)
        # Keras' tracker averages the loss over batches; the step averages it over examples.
        tracker = vars(model).get("_loss_tracker")
        self._metrics = [
            metric for metric in model.metrics if metric is not tracker and metric.variables
        ]
        self._per_batch = [False for _ in self._metrics]
        self._require_results(returned)
        self._check_sums(examples, outputs)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The model's metrics with state, for `without_effects`."""
        return self._metrics

    def loss(
        self, features: Any, labels: Any, outputs: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        """Compute the model's loss of a batch, including the losses of its layers."""
        # Positional arguments, as in Keras: an override may use other names.
        keywords = {"training": training} if self._takes_training else {}
        loss = self._model.compute_loss(features, labels, outputs, weights, **keywords)
        if loss is None:
            raise UserCodeError(
                f"compute_loss of {self._label} must return the loss.", received="None"
            )
        return tf.convert_to_tensor(loss)

    def measure(
        self,
        scope: keras.StatelessScope,
        features: Any,
        labels: Any,
        outputs: Any,
        weights: Any,
        count: Any,
    ) -> list[MetricSums]:
        """Compute the metrics' sums of a batch inside of the scope of `without_effects`.

        Args:
            scope: The scope in which the batch's loss was computed, as `compute_loss` may update
                metrics, too.
            features: The batch's features.
            labels: The batch's labels.
            outputs: The model's outputs.
            weights: Example weights; None for equal weights.
            count: Number of examples, a float scalar.
        """
        self._model.compute_metrics(features, labels, outputs, sample_weight=weights)
        return [
            MetricSums(
                metric.name,
                row * count if is_per_batch else row,
                metric,
                is_per_batch,
                self._reported,
            )
            for metric, row, is_per_batch in zip(
                self._metrics, self._rows(scope), self._per_batch, strict=True
            )
        ]

    def _rows(self, scope: keras.StatelessScope) -> list[tf.Tensor]:
        return [
            row_of([scope.get_current_value(variable) for variable in metric.variables])
            for metric in self._metrics
        ]

    def _require_results(self, returned: Any) -> None:
        """Record the names that `compute_metrics` returns; each must be the result of a metric."""
        method = f"compute_metrics of {self._label}"
        if not isinstance(returned, dict):
            raise UserCodeError(
                f"{method} must return a dict.",
                received=type(returned).__name__,
                hint="Return self.get_metrics_result().",
            )
        result_names = {_LOSS}
        for metric in self._metrics:
            zeros = [tf.zeros(variable.shape, variable.dtype) for variable in metric.variables]
            result = result_of(metric, row_of(zeros))
            named = result if isinstance(result, dict) else {metric.name: result}
            for name, value in named.items():
                require_number(metric, value, f"{name} of {self._label}")
            result_names |= set(named)
        if unknown := sorted(set(returned) - result_names):
            raise UserCodeError(
                f"{method} returns values that are not results of the model's metrics, so they"
                " cannot be summed over a ring.",
                received=", ".join(unknown),
                hint="Create a keras.metrics.Metric of that name in __init__, update it in"
                " compute_metrics, and return self.get_metrics_result().",
            )
        self._reported = frozenset(returned) - {_LOSS}

    def _check_sums(self, examples: Any, outputs: Any) -> None:
        """Check that each metric's state is a sum over examples or a mean over batches."""

        def loss_and_rows(outputs: Any, examples: Any) -> Any:
            features, labels, weights = (*examples, None)[:3]
            with without_effects(self._model, metrics=self._metrics) as scope:
                loss = tf.constant(0.0)
                if self._has_loss:
                    loss = self.loss(features, labels, outputs, weights, training=False)
                self._model.compute_metrics(features, labels, outputs, sample_weight=weights)
                return loss, self._rows(scope)

        # Traced for any number of examples, like the step; some sums of Keras depend on that.
        traced = tf.function(loss_and_rows, autograph=False).get_concrete_function(
            *tf.nest.map_structure(any_number, (outputs, examples))
        )

        def sums_of(indices: list[int]) -> Any:
            part = tf.nest.map_structure(lambda value: _gather(value, indices), (outputs, examples))
            return traced(*part)

        all_indices = list(range(sum(_TRIED_EXAMPLES)))
        parts = [all_indices[: _TRIED_EXAMPLES[0]], all_indices[_TRIED_EXAMPLES[0] :], all_indices]
        trials = [sums_of(indices) for indices in parts]
        repeated_losses = [float(sums_of(all_indices * times)[0]) for times in (2, 3)]
        if is_sum_over_batch(float(trials[-1][0]), *repeated_losses):
            raise sum_over_batch(self._label)
        trackers = getattr(vars(self._model).get("_compile_loss"), "metrics", [])
        for index, metric in enumerate(self._metrics):
            rows = [rows[index].numpy() for _, rows in trials]
            if _is_sum(*rows):
                continue
            # Keras' trackers of the outputs' losses count a batch once. Masks or weights may divide
            # these losses, and then the mean of two parts is not that of the whole.
            if metric not in trackers and not _is_mean(*rows):
                failing = _failing_metric(metric, rows)
                raise UserCodeError(
                    f"{failing.name} of {self._label} cannot be summed over a ring: the state"
                    f" of {type(failing).__name__} depends on the order or the size of the batches."
                    " Make update_state only add sums over the examples to variables that start at"
                    " 0, and compute the value in result."
                )
            self._per_batch[index] = True


def sum_over_batch(label: str) -> UserCodeError:
    """Build the error for a loss that grows with the batch."""
    return UserCodeError(
        f"The loss of {label} must be the mean over a batch.",
        received="a loss that is, or contains, a sum over the batch",
        hint="Take keras.ops.mean over the examples, also in add_loss, and keep the default"
        " reduction of a Keras loss, 'sum_over_batch_size'.",
    )


@contextlib.contextmanager
def _restored(model: keras.Model) -> Iterator[None]:
    """Restore the model's non-trainable variables, and reset its metrics."""
    before = [(variable, variable.numpy()) for variable in model.non_trainable_variables]
    yield
    for variable, value in before:
        variable.assign(value)
    for metric in model.metrics:
        metric.reset_state()


def _failing_metric(metric: keras.metrics.Metric, rows: list[Any]) -> keras.metrics.Metric:
    """Find the metric inside a compound metric that is not a sum; else the metric itself."""
    start = 0
    for inner in getattr(metric, "metrics", []):
        stop = start + sum(int(np.prod(variable.shape)) for variable in inner.variables)
        if not _is_sum(*(row[start:stop] for row in rows)):
            return inner
        start = stop
    return metric


def any_number(tensor: Any) -> Any:
    """Build the `tf.TypeSpec` of a tensor with any number of examples."""
    shape = [None, *tensor.shape[1:]]
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank)
    spec_class = tf.SparseTensorSpec if isinstance(tensor, tf.SparseTensor) else tf.TensorSpec
    return spec_class(shape, tensor.dtype)


def _gather(tensor: Any, indices: list[int]) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.from_dense(tf.gather(tf.sparse.to_dense(tensor), indices))
    return tf.gather(tensor, indices)


def _is_sum(first: Any, last: Any, whole: Any) -> bool:
    return np.allclose(first + last, whole, rtol=1e-4, atol=1e-5)


def _is_mean(first: Any, last: Any, whole: Any) -> bool:
    weights = np.array(_TRIED_EXAMPLES) / sum(_TRIED_EXAMPLES)
    return np.allclose(first * weights[0] + last * weights[1], whole, rtol=1e-4, atol=1e-5)
