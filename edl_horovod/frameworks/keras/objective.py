"""Compute the loss and the metrics of a batch, in training or evaluation.

The spec's loss and metrics are used, else the model's: `compute_loss`, `compute_metrics`, and the
arguments of `compile`.
"""

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.denominators import OverRing, Reductions, RingMean, depends_on
from edl_horovod.frameworks.keras.functional import (
    at_least_float32,
    num_examples,
    repeated,
    some_examples,
    state_variables,
    traced,
    without_effects,
)
from edl_horovod.frameworks.keras.metrics import (
    TRIED_EXAMPLES,
    MetricSums,
    is_sum,
    metric_sums,
    metric_totals,
    not_a_sum,
    random_examples,
    require_dict,
    require_number,
    result_of,
    row_of,
    zeros_of,
)
from edl_horovod.frameworks.values import (
    BATCH_DEPENDENT,
    are_same_loss,
    few_examples,
    is_sum_over_batch,
    warn_of_metrics,
)
from edl_horovod.models.calling import call_declared, declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

log = logging.getLogger(__name__)

_LOSS = "loss"
"""The name of the loss in reports."""
MAX_TRIED_EXAMPLES = 8


def overrides(model: keras.Model, method: str) -> bool:
    """Whether a model overrides a method of Keras."""
    definer = next(base for base in type(model).__mro__ if method in vars(base))
    return method in vars(model) or definer.__module__.partition(".")[0] != "keras"


@dataclass(frozen=True)
class Outcome:
    """The loss, the metrics and the model's new state after one batch."""

    loss: RingMean
    """Includes the losses that layers add."""
    metrics: list[MetricSums]
    after: list[tf.Tensor]
    """New values of the `state_variables`."""
    is_assigned: list[bool]
    """For each value in `after`, whether the model has assigned it."""


class Objective:
    """Loss and metrics of a model, in one mode."""

    def __init__(
        self,
        loaded: LoadedSpec,
        model: keras.Model,
        element_spec: tuple[Any, ...],
        mode: Mode,
        *,
        class_weight: Sequence[float] = (),
    ) -> None:
        """Choose between the loss and metrics of the spec and of the model, and check the model's.

        Args:
            loaded: The user's spec.
            model: The built model.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            mode: `Mode.TRAINING` or `Mode.EVALUATION`.
            class_weight: Example weight for each class, by class number; empty for equal weights.

        Raises:
            UserCodeError: There is no loss or more than one, the model overrides the step, or its
                loss or metrics cannot be summed over a ring.
        """
        self._loaded, self._model, self._mode = loaded, model, mode
        self._class_weight = list(class_weight)
        _reject_custom_step(model, mode, loaded.label)
        if class_weight and len(element_spec) > 2:
            raise UserCodeError(
                f"create_dataset of {loaded.label} returns example weights, but train.class_weight"
                " is set, too.",
                received={"train.class_weight": self._class_weight},
                hint="Use only one of them.",
            )
        uses_model_loss = _uses_model(loaded, model, "create_loss", "compute_loss")
        if uses_model_loss and not (model.compiled or overrides(model, "compute_loss")):
            raise UserCodeError(
                f"{loaded.label} has no loss.",
                hint="Define default_loss in the class, create_loss in the spec, or a function loss"
                " in its file; or compile the model with one, or set loss=...",
            )
        self._uses_model_loss = uses_model_loss
        self._uses_model_metrics = _uses_model(
            loaded, model, "create_metrics", "compute_metrics"
        ) and (uses_model_loss or model.compiled or overrides(model, "compute_metrics"))
        self._is_mean = False
        self.num_divisors = 1
        """The number of different divisors in the loss, known after it has been traced."""
        self._compiled: _ModelObjective | None = None
        if uses_model_loss or self._uses_model_metrics:
            doing = f"Checking the loss and the metrics of the model of {loaded.label}"
            with user_code(doing, root=loaded.zoo):
                self._compiled = _ModelObjective(
                    model, element_spec, has_loss=uses_model_loss, label=loaded.label
                )

    def require_mean(self, examples: tuple[Any, ...]) -> None:
        """Reject a loss that is a sum over the batch; only the first call checks this.

        Args:
            examples: Features, labels, and weights if any, of at least one example. They must be
                real data, because generated labels may be masked.

        Raises:
            UserCodeError: The loss or a part of it is a sum.
        """
        if self._is_mean:
            return
        few, label = some_examples(examples, 0, MAX_TRIED_EXAMPLES), self._loaded.label
        try:
            with user_code(f"Checking the loss of {label}", root=self._loaded.zoo):
                outputs, layer_losses = self._trial_outputs(few[0])
                values, adds_up = self._trial_losses(few, outputs)
                losses = [values]
                if layer_losses and not overrides(self._model, "compute_loss"):
                    repeated_losses = [
                        self._trial_outputs(repeated(few[0], times))[1] for times in (2, 3)
                    ]
                    losses += map(list, zip(layer_losses, *repeated_losses, strict=True))
        except UserCodeError as e:
            if not isinstance(e.__cause__, tf.errors.InvalidArgumentError):
                raise
            return  # The step fails, too, and its message describes the whole batch.
        if any(is_sum_over_batch(*map(float, loss)) for loss in losses):
            raise sum_over_batch(f"The loss of {label}")
        once, twice, _ = values
        if not adds_up or not are_same_loss(once, twice):
            log.warning(BATCH_DEPENDENT, label)
        if not self._uses_model_metrics:
            trials = [
                (*self._with_weights(examples), trial_outputs)
                for examples, trial_outputs in _with_parts((few, outputs))
            ]
            with few_examples(), without_effects(self._model):
                total, *parts = (
                    metric_totals(
                        self._loaded, self._mode, outs, labels, weights, int(num_examples(features))
                    )
                    for features, labels, weights, outs in trials
                )
                warn_of_metrics(total, parts, label=label, instead="a Keras metric in evaluations")
        self._is_mean = True

    def _trial_outputs(self, features: Any) -> tuple[Any, list[Any]]:
        """Compute the model's outputs for examples, and the losses that its layers add."""
        with without_effects(self._model):
            outputs = at_least_float32(self._model(features, training=False))
            return outputs, list(self._model.losses)

    def _trial_losses(self, examples: tuple[Any, ...], outputs: Any) -> tuple[list[float], bool]:
        """Compute the loss of examples without what layers add, and check that it adds up.

        Returns:
            The loss of the examples repeated once, twice and three times, and whether the sums of
            two parts of them equal the sum of the whole.
        """

        def loss(outputs: Any, examples: tuple[Any, ...]) -> Any:
            with without_effects(self._model):
                mean = self._loss(self._with_weights(examples), outputs)
            return mean.total, mean.weight

        losses = _traced_for_any_number(loss, outputs, examples)

        def mean(*trials: tuple[Any, Any]) -> float:
            sums = [list(map(float, losses(*trial))) for trial in trials]
            total, weight = map(sum, zip(*sums, strict=True))
            return total / weight if weight else 0.0

        trial = (outputs, examples)
        means = [mean(repeated(trial, times)) for times in (1, 2, 3)]
        _, *parts = _with_parts(trial)
        return means, self.num_divisors > 1 or are_same_loss(means[2], mean(*parts))

    def _loss(
        self, examples: tuple[Any, ...], outputs: Any, over_ring: OverRing | None = None
    ) -> RingMean:
        """Compute the loss as a sum and a divisor, which a ring adds up.

        The model's own loss includes the losses that its layers add.
        """
        # `num_divisors` is known here: the step for a single rank is traced first.
        reductions = Reductions(
            num_examples(examples[0]), over_ring if self.num_divisors > 1 else None
        )
        name = "the loss" if self._uses_model_loss else "create_loss"
        with logging_warnings(f"{name} of {self._loaded.label}"), reductions.recorded():
            if self._uses_model_loss:
                assert self._compiled is not None
                is_training = self._mode is Mode.TRAINING
                value = self._compiled.loss(examples, outputs, training=is_training)
            else:
                value = self._create_loss(examples, outputs)
        if isinstance(value, tuple | list) and len(value) == 2:
            total, weight = (self._scalar(tf.convert_to_tensor(part)) for part in value)
            if depends_on(weight, outputs):
                raise UserCodeError(
                    f"create_loss of {self._loaded.label} must return a pair (sum, weight) whose"
                    " weight does not depend on the model's outputs.",
                    received="a weight that depends on the model's outputs",
                    hint="Return the sum of the losses and the sum of their weights, for instance"
                    " tf.reduce_sum(losses * mask), tf.reduce_sum(mask).",
                )
            self.num_divisors = max(self.num_divisors, reductions.num_divisors)
            return RingMean(total, tf.cast(weight, total.dtype))
        mean = reductions.ring_mean(self._scalar(tf.convert_to_tensor(value)), outputs)
        self.num_divisors = max(self.num_divisors, reductions.num_divisors)
        return mean

    def _create_loss(self, examples: tuple[Any, ...], outputs: Any) -> Any:
        """Call the spec's loss."""
        _, labels, weights = examples
        available = {"outputs": outputs, "labels": labels}
        create_loss = self._loaded.spec.create_loss
        if weights is not None:
            accepted = declared(create_loss)
            if "sample_weight" not in accepted.names and not accepted.takes_any:
                raise UserCodeError(
                    f"create_dataset or train.class_weight sets example weights, but create_loss of"
                    f" {self._loaded.label} does not take them.",
                    hint="Declare sample_weight in create_loss and multiply each example's loss by"
                    " it before taking the mean, or remove the weights.",
                )
            available["sample_weight"] = weights
        return call_declared(create_loss, available)

    def loss_to_raise(self, features: Any, others: tuple[Any, ...]) -> tf.Tensor:
        """Compute the loss in evaluation mode, for adversarial examples.

        Args:
            features: The features of a batch.
            others: Its labels, and weights if any.
        """
        examples = self._with_weights((features, *others))
        with without_effects(self._model):
            outputs = at_least_float32(self._model(features, training=False))
            return self._loss(examples, outputs).total

    def of_batch(
        self,
        examples: tuple[Any, ...],
        *,
        non_trainable: Sequence[tf.Tensor] | None = None,
        over_ring: OverRing | None = None,
    ) -> Outcome:
        """Compute the loss and the metrics of a batch without changing the model.

        Args:
            examples: Features, labels, and weights if any.
            non_trainable: Values of the `state_variables`; None for their current values.
            over_ring: Sums a row over the ring, for a loss with several divisors; None on a single
                rank.
        """
        model, variables = self._model, state_variables(self._model)
        features, labels, weights = examples = self._with_weights(examples)
        count = tf.cast(num_examples(features), tf.float32)
        compiled_metrics = self._compiled.metrics if self._compiled is not None else ()
        with without_effects(model, non_trainable=non_trainable, metrics=compiled_metrics) as scope:
            before = [scope.get_current_value(variable) for variable in variables]
            outputs = at_least_float32(model(features, training=self._mode is Mode.TRAINING))
            extra_losses = list(model.losses)
            if self._uses_model_loss:
                loss = self._loss(examples, outputs, over_ring)
            if self._uses_model_metrics:
                assert self._compiled is not None
                metrics = self._compiled.measure(scope, examples, outputs, count)
        if self._mode is Mode.TRAINING:
            scope.require_usable(model, self._loaded.label)
        after = [scope.get_current_value(variable) for variable in variables]
        if not self._uses_model_loss:
            loss = self._loss(examples, outputs, over_ring)
            extra = [tf.cast(value, loss.total.dtype) * loss.weight for value in extra_losses]
            loss = replace(loss, total=tf.add_n([loss.total, *extra]))
        if not self._uses_model_metrics:
            metrics = metric_sums(self._loaded, self._mode, outputs, labels, weights, count)
        return Outcome(
            loss,
            metrics,
            [tf.convert_to_tensor(value) for value in after],
            [new is not old for new, old in zip(after, before, strict=True)],
        )

    def _with_weights(self, examples: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Return features, labels, and weights, which are None if there are none."""
        features, labels, weights = (*examples, None)[:3]
        if self._class_weight:
            label = self._loaded.label
            weights = _weights_of_classes(labels, self._class_weight, label=label)
        return features, labels, weights

    def _scalar(self, loss: tf.Tensor) -> tf.Tensor:
        if loss.shape.rank != 0:
            name = "compute_loss" if self._uses_model_loss else "create_loss"
            raise UserCodeError(
                f"{name} of {self._loaded.label} must return the mean over the batch, a scalar, or"
                " a pair (sum, weight).",
                received={"shape": loss.shape},
                hint="Reduce the loss, for instance with tf.reduce_mean.",
            )
        return loss


class _ModelObjective:
    """The `compute_loss` and `compute_metrics` of a model, overridden or Keras' own.

    They are called as `fit` and `evaluate` call them. The state that the model's metrics get in a
    call is read from the call's scope and summed over the ring.
    """

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
        examples = random_examples(element_spec, sum(TRIED_EXAMPLES), np.random.default_rng(0))
        with _restored(model):
            outputs = at_least_float32(model(examples[0], training=False))
            if has_loss:
                self.loss(examples, outputs, training=False)
            returned = self._compute_metrics(examples, outputs)
        # Keras' tracker averages the loss over batches; the step averages it over examples.
        tracker = vars(model).get("_loss_tracker")
        self.metrics = [
            metric for metric in model.metrics if metric is not tracker and metric.variables
        ]
        """The model's metrics with state, for `without_effects`."""
        self._are_means = [False for _ in self.metrics]
        self._require_results(returned)
        self._check_sums(examples, outputs)

    def loss(self, examples: tuple[Any, ...], outputs: Any, *, training: bool) -> tf.Tensor:
        """Compute the model's loss of a batch, including the losses of its layers."""
        features, labels, weights = (*examples, None)[:3]
        # Positional arguments, as in Keras: an override may use other names.
        keywords = {"training": training} if self._takes_training else {}
        loss = self._model.compute_loss(features, labels, outputs, weights, **keywords)
        if loss is None:
            raise UserCodeError(
                f"compute_loss of {self._label} must return the loss.", received="None"
            )
        return tf.convert_to_tensor(loss)

    def measure(
        self, scope: keras.StatelessScope, examples: tuple[Any, ...], outputs: Any, count: Any
    ) -> list[MetricSums]:
        """Compute the metrics' sums of a batch inside of the scope of `without_effects`.

        Args:
            scope: The scope in which the batch's loss was computed, as `compute_loss` may update
                metrics, too.
            examples: Features, labels, and weights if any.
            outputs: The model's outputs.
            count: Number of examples, a float scalar.
        """
        self._compute_metrics(examples, outputs)
        rows = zip(self.metrics, self._rows(scope), self._are_means, strict=True)
        return [
            MetricSums(
                metric.name, row * count if is_mean else row, metric, is_mean, self._reported
            )
            for metric, row, is_mean in rows
        ]

    def _compute_metrics(self, examples: tuple[Any, ...], outputs: Any) -> Any:
        features, labels, weights = (*examples, None)[:3]
        return self._model.compute_metrics(features, labels, outputs, sample_weight=weights)

    def _rows(self, scope: keras.StatelessScope) -> list[tf.Tensor]:
        return [
            row_of([scope.get_current_value(variable) for variable in metric.variables])
            for metric in self.metrics
        ]

    def _require_results(self, returned: Any) -> None:
        """Record the names that `compute_metrics` returns; each must be the result of a metric."""
        method = f"compute_metrics of {self._label}"
        require_dict(returned, method, hint="Return self.get_metrics_result().")
        result_names = {_LOSS}
        for metric in self.metrics:
            result = result_of(metric, row_of(zeros_of(metric)))
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
            with without_effects(self._model, metrics=self.metrics) as scope:
                loss = tf.constant(0.0)
                if self._has_loss:
                    loss = self.loss(examples, outputs, training=False)
                self._compute_metrics(examples, outputs)
                return loss, self._rows(scope)

        function = _traced_for_any_number(loss_and_rows, outputs, examples)
        trial, (middle, _) = (outputs, examples), TRIED_EXAMPLES
        parts = (
            some_examples(trial, 0, middle),
            some_examples(trial, middle, sum(TRIED_EXAMPLES)),
            trial,
        )
        trials = [function(*part) for part in parts]
        repeated_losses = [float(function(*repeated(trial, times))[0]) for times in (2, 3)]
        if is_sum_over_batch(float(trials[-1][0]), *repeated_losses):
            raise sum_over_batch(f"The loss of {self._label}")
        trackers = getattr(vars(self._model).get("_compile_loss"), "metrics", [])
        for index, metric in enumerate(self.metrics):
            rows = [rows[index].numpy() for _, rows in trials]
            if is_sum(*rows):
                continue
            # Keras' trackers of the outputs' losses count a batch once. Masks or weights may divide
            # these losses, and then the mean of two parts is not that of the whole.
            if metric not in trackers and not _is_mean(*rows):
                failing = _failing_metric(metric, rows)
                raise not_a_sum(failing, f"{failing.name} of {self._label}")
            self._are_means[index] = True


def _uses_model(loaded: LoadedSpec, model: keras.Model, method: str, model_method: str) -> bool:
    """Whether to use the model's part, which is the case if the spec does not have it.

    Raises:
        UserCodeError: Both the spec and the model define it.
    """
    if not loaded.overrides_method(method):
        return True
    if overrides(model, model_method):
        raise UserCodeError(
            f"{loaded.label} has {method}, and its model {type(model).__name__} has"
            f" {model_method}, which define the same part.",
            hint=f"Remove one of them. Without {method}, {model_method} is called as by model.fit.",
        )
    return False


def _reject_custom_step(model: keras.Model, mode: Mode, label: str) -> None:
    """Reject an overridden step: it would update the variables before the ring has the sums."""
    step = "train" if mode is Mode.TRAINING else "test"
    for method in (f"{step}_step", f"make_{step}_function"):
        if overrides(model, method):
            raise UserCodeError(
                f"{type(model).__name__} of {label} overrides {method}, but a ring does not run"
                " the model's step: it sums the gradients of all ranks before it applies the"
                " optimizer.",
                hint="Write the loss as compute_loss(self, x, y, y_pred, sample_weight, training)"
                " and the metrics as compute_metrics(self, x, y, y_pred, sample_weight), and"
                f" remove {method}. A step with several losses and optimizers, such as a GAN's, is"
                " written as phases: create_phases and create_phase_loss of an ElasticDLSpec.",
            )


def _weights_of_classes(labels: Any, weights: Sequence[float], *, label: str) -> tf.Tensor:
    """Compute the weight of each example, shape (examples,), float32, as Keras' `fit` does.

    Args:
        labels: Class numbers of shape (examples,) or (examples, 1), or one-hot vectors.
        weights: The weight of each class, by class number; further classes have weight 1.
        label: Name of the model in messages.

    Raises:
        UserCodeError: The labels are not one class for each example.
    """
    rank = None if tf.nest.is_nested(labels) else labels.shape.rank
    if rank not in (1, 2):
        raise UserCodeError(
            f"train.class_weight needs one class for each example of {label}.",
            received=f"labels {labels}",
            hint="Remove it, and return (features, labels, sample_weight) from create_dataset.",
        )
    if rank == 2:
        has_one_column = labels.shape[1] == 1
        labels = labels[:, 0] if has_one_column else tf.argmax(labels, 1)
    classes = tf.cast(labels, tf.int32)
    is_weighted = (classes >= 0) & (classes < len(weights))
    class_weights = tf.gather(tf.constant(weights, tf.float32), tf.where(is_weighted, classes, 0))
    return tf.where(is_weighted, class_weights, 1.0)


def sum_over_batch(subject: str) -> UserCodeError:
    """Build the error for a loss, called `subject`, that grows with the batch."""
    return UserCodeError(
        f"{subject[:1].upper()}{subject[1:]} must be the mean over a batch.",
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
        if not is_sum(*(row[start:stop] for row in rows)):
            return inner
        start = stop
    return metric


def _with_parts(batch: Any) -> list[Any]:
    """Return a batch, repeated if it is small, and two parts of it with several examples each."""
    count = int(num_examples(batch))
    times = 1 if count > 3 else 3
    whole, middle = repeated(batch, times), count * times // 2
    return [whole, some_examples(whole, 0, middle), some_examples(whole, middle, count * times)]


def _traced_for_any_number(function: Callable[..., Any], *arguments: Any) -> Any:
    """Trace a function for any number of examples, like the step; sums may depend on that."""
    return traced(function, *tf.nest.map_structure(any_number, arguments))


def any_number(tensor: Any) -> Any:
    """Build the `tf.TypeSpec` of a tensor with any number of examples."""
    shape = [None, *tensor.shape[1:]]
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank)
    spec_class = tf.SparseTensorSpec if isinstance(tensor, tf.SparseTensor) else tf.TensorSpec
    return spec_class(shape, tensor.dtype)


def _is_mean(first: Any, last: Any, whole: Any) -> bool:
    weights = np.array(TRIED_EXAMPLES) / sum(TRIED_EXAMPLES)
    return is_sum(first * weights[0], last * weights[1], whole)
