"""Loss and metrics that a Keras model brings itself: compiled, or as methods that it overrides.

They are called as `fit` and `evaluate` call them. What they count goes into the model's metrics, so
it comes out of the call and is added up over the ring.
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
    made_up,
    require_number,
    result_of,
    row_of,
)
from edl_horovod.frameworks.values import is_sum_over_batch

__all__ = ["OwnParts", "any_number", "overrides", "sum_over_batch"]

_TRIED_EXAMPLES = (3, 5)
_LOSS = "loss"
"""The name of the loss in every report; here it is the mean over the examples."""


def overrides(model: keras.Model, method: str) -> bool:
    """Whether a model has a method of its own where Keras has one."""
    owner = next(kind for kind in type(model).__mro__ if method in vars(kind))
    return method in vars(model) or owner.__module__.partition(".")[0] != "keras"


class OwnParts:
    """`compute_loss` and `compute_metrics` of a model, also those that Keras made of `compile`."""

    def __init__(
        self, model: keras.Model, element_spec: tuple[Any, ...], *, has_loss: bool, label: str
    ) -> None:
        """Make what Keras makes at the first batch, and try what may be added up.

        Args:
            model: Built.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            has_loss: Whether its loss counts; else it need not have one.
            label: Names the model in messages.

        Raises:
            UserCodeError: A metric's numbers, or the loss, cannot be added up over a ring.
        """
        self._model = model
        self._label = label
        self._has_loss = has_loss
        self._takes_training = "training" in inspect.signature(model.compute_loss).parameters
        self._shown: frozenset[str] = frozenset()
        made = made_up(element_spec, sum(_TRIED_EXAMPLES), np.random.default_rng(0))
        examples = as_tensors(made)
        features, labels, weights = (*examples, None)[:3]
        with _unchanged(model):
            outputs = at_least_float32(model(features, training=False))
            if has_loss:
                self.loss(features, labels, outputs, weights, training=False)
            returned = model.compute_metrics(features, labels, outputs, sample_weight=weights)
        # Keras' own mean of the losses: the step has one that counts examples.
        tracker = vars(model).get("_loss_tracker")
        self._metrics = [each for each in model.metrics if each is not tracker and each.variables]
        self._per_batch = [False for _ in self._metrics]
        self._require_results(returned)
        self._try(examples, outputs)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The model's metrics, for `without_effects`."""
        return self._metrics

    def loss(
        self, features: Any, labels: Any, outputs: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        """The model's loss of a batch, with all that it adds to it."""
        # By their places, as Keras does: the user may have named them otherwise.
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
        """What the metrics have counted of a batch, inside of the scope of `without_effects`.

        Args:
            scope: Where the batch's loss was computed, which may count, too.
            features: A batch.
            labels: Its labels.
            outputs: What the model returned.
            weights: Those of the examples; None where they weigh the same.
            count: Number of examples, a float scalar.
        """
        self._model.compute_metrics(features, labels, outputs, sample_weight=weights)
        return [
            MetricSums(
                metric.name, row * count if is_per_batch else row, metric, is_per_batch, self._shown
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
        """Keep the names that `compute_metrics` returns, all of which must be metrics' results."""
        doing = f"compute_metrics of {self._label}"
        if not isinstance(returned, dict):
            raise UserCodeError(
                f"{doing} must return a dict.",
                received=type(returned).__name__,
                cure="Return self.get_metrics_result().",
            )
        known = {_LOSS}
        for metric in self._metrics:
            zeros = [tf.zeros(variable.shape, variable.dtype) for variable in metric.variables]
            result = result_of(metric, row_of(zeros))
            named = result if isinstance(result, dict) else {metric.name: result}
            for name, value in named.items():
                require_number(metric, value, f"{name} of {self._label}")
            known |= set(named)
        if unknown := sorted(set(returned) - known):
            raise UserCodeError(
                f"{doing} returns what is not the result of a metric, and cannot be added up over a"
                " ring.",
                received=", ".join(unknown),
                cure="Make a keras.metrics.Metric of that name in __init__, update it in"
                " compute_metrics, and return self.get_metrics_result().",
            )
        self._shown = frozenset(returned) - {_LOSS}

    def _try(self, examples: Any, outputs: Any) -> None:
        """Look whether the numbers are sums over examples, or means that count a batch once."""

        def numbers(outputs: Any, examples: Any) -> Any:
            features, labels, weights = (*examples, None)[:3]
            with without_effects(self._model, metrics=self._metrics) as scope:
                loss = tf.constant(0.0)
                if self._has_loss:
                    loss = self.loss(features, labels, outputs, weights, training=False)
                self._model.compute_metrics(features, labels, outputs, sample_weight=weights)
                return loss, self._rows(scope)

        # As the step is traced: for any number of examples, on which some of Keras' sums depend.
        traced = tf.function(numbers, autograph=False).get_concrete_function(
            *tf.nest.map_structure(any_number, (outputs, examples))
        )

        def of(chosen: list[int]) -> Any:
            part = tf.nest.map_structure(
                lambda value: _gathered(value, chosen), (outputs, examples)
            )
            return traced(*part)

        whole = list(range(sum(_TRIED_EXAMPLES)))
        parts = [whole[: _TRIED_EXAMPLES[0]], whole[_TRIED_EXAMPLES[0] :], whole]
        tried = [of(part) for part in parts]
        again = [float(of(whole * times)[0]) for times in (2, 3)]
        if is_sum_over_batch(float(tried[-1][0]), *again):
            raise sum_over_batch(self._label)
        trackers = getattr(vars(self._model).get("_compile_loss"), "metrics", [])
        for place, metric in enumerate(self._metrics):
            rows = [rows[place].numpy() for _, rows in tried]
            if _is_sum(*rows):
                continue
            # The losses of outputs, which count a batch once, are means of no parts where masks or
            # weights divide them.
            if metric not in trackers and not _is_mean(*rows):
                culprit = _culprit(metric, rows)
                raise UserCodeError(
                    f"{culprit.name} of {self._label} cannot be added up over a ring: what"
                    f" {type(culprit).__name__} keeps depends on the order or the size of the"
                    " batches. Let its update_state only add sums over the examples to variables"
                    " that begin at 0, and its result put them together."
                )
            self._per_batch[place] = True


def sum_over_batch(label: str) -> UserCodeError:
    """What to say of a loss that grows with the batch."""
    return UserCodeError(
        f"The loss of {label} must be the mean over a batch.",
        received="a sum over it, or one as a part of the loss",
        cure="Take keras.ops.mean over the examples, also in add_loss, and leave a Keras loss its"
        " own reduction, 'sum_over_batch_size'.",
    )


@contextlib.contextmanager
def _unchanged(model: keras.Model) -> Iterator[None]:
    """Give the model's other variables back what they had, and the metrics nothing."""
    before = [(variable, variable.numpy()) for variable in model.non_trainable_variables]
    yield
    for variable, value in before:
        variable.assign(value)
    for metric in model.metrics:
        metric.reset_state()


def _culprit(metric: keras.metrics.Metric, rows: list[Any]) -> keras.metrics.Metric:
    """Which of the metrics that Keras keeps in one is no sum; the metric itself if it is one."""
    start = 0
    for inner in getattr(metric, "metrics", []):
        stop = start + sum(int(np.prod(variable.shape)) for variable in inner.variables)
        if not _is_sum(*(row[start:stop] for row in rows)):
            return inner
        start = stop
    return metric


def any_number(tensor: Any) -> Any:
    """The `tf.TypeSpec` of a tensor with any number of examples."""
    shape = [None, *tensor.shape[1:]]
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank)
    kind = tf.SparseTensorSpec if isinstance(tensor, tf.SparseTensor) else tf.TensorSpec
    return kind(shape, tensor.dtype)


def _gathered(tensor: Any, chosen: list[int]) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.from_dense(tf.gather(tf.sparse.to_dense(tensor), chosen))
    return tf.gather(tensor, chosen)


def _is_sum(first: Any, last: Any, whole: Any) -> bool:
    return np.allclose(first + last, whole, rtol=1e-4, atol=1e-5)


def _is_mean(first: Any, last: Any, whole: Any) -> bool:
    weights = np.array(_TRIED_EXAMPLES) / sum(_TRIED_EXAMPLES)
    return np.allclose(first * weights[0] + last * weights[1], whole, rtol=1e-4, atol=1e-5)
