"""Compute the loss and the metrics of a batch, in training or evaluation.

The spec's loss and metrics are used, else the model's: `compute_loss`, `compute_metrics`, and the
arguments of `compile`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.compiled_objective import (
    CompiledObjective,
    any_number,
    overrides,
    sum_over_batch,
)
from edl_horovod.frameworks.keras.denominators import OverRing, Reductions, RingMean, depends_on
from edl_horovod.frameworks.keras.functional import (
    MetricSums,
    at_least_float32,
    metric_sums,
    num_examples,
    repeated,
    some_examples,
    without_effects,
)
from edl_horovod.frameworks.values import BATCH_DEPENDENT, are_same_loss, is_sum_over_batch
from edl_horovod.models.calling import call_declared, declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["Objective", "Outcome"]

log = logging.getLogger(__name__)

_TRIED_EXAMPLES = 8


@dataclass(frozen=True)
class Outcome:
    """The loss, the metrics and the model's new state after one batch."""

    loss: RingMean
    """Includes the losses that layers add."""
    metrics: list[MetricSums]
    after: list[tf.Tensor]
    """New values of the non-trainable variables."""
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
        self._compiled: CompiledObjective | None = None
        if uses_model_loss or self._uses_model_metrics:
            doing = f"Checking the loss and the metrics of the model of {loaded.label}"
            with user_code(doing, root=loaded.zoo):
                self._compiled = CompiledObjective(
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
        few, label = some_examples(examples, 0, _TRIED_EXAMPLES), self._loaded.label
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
            raise sum_over_batch(label)
        once, twice, _ = values
        if not adds_up or not are_same_loss(once, twice):
            log.warning(BATCH_DEPENDENT, label)
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
            features, labels, weights = (*examples, None)[:3]
            if self._class_weight:
                label = self._loaded.label
                weights = _weights_of_classes(labels, self._class_weight, label=label)
            count = num_examples(features)
            with without_effects(self._model):
                if self._compiled is None or not self._uses_model_loss:
                    mean = self._spec_loss(outputs, labels, weights, count)
                else:
                    mean = self._model_loss(features, labels, outputs, weights, count)
            return mean.total, mean.weight

        # Traced for any number of examples, like the step.
        traced = tf.function(loss, autograph=False).get_concrete_function(
            *tf.nest.map_structure(any_number, (outputs, examples))
        )

        def total_and_weight(outputs: Any, examples: Any) -> tuple[float, float]:
            total, weight = traced(outputs, examples)
            return float(total), float(weight)

        trial = (outputs, examples)
        sums = [total_and_weight(*repeated(trial, times)) for times in (1, 2, 3)]
        means = [total / weight if weight else 0.0 for total, weight in sums]
        # Two parts with more than one example each.
        count = int(num_examples(examples[0]))
        times = 1 if count > 3 else 3
        repeated_trial, middle = repeated(trial, times), count * times // 2
        bounds = ((0, middle), (middle, count * times))
        parts = [
            total_and_weight(*some_examples(repeated_trial, first, last)) for first, last in bounds
        ]
        total, weight = (sum(numbers) for numbers in zip(*parts, strict=True))
        mean = total / weight if weight else 0.0
        return means, self.num_divisors > 1 or are_same_loss(means[2], mean)

    def _model_loss(
        self,
        features: Any,
        labels: Any,
        outputs: Any,
        weights: Any,
        count: tf.Tensor,
        over_ring: OverRing | None = None,
    ) -> RingMean:
        """Compute the model's loss, including the losses of its layers."""
        compiled, training = self._compiled, self._mode is Mode.TRAINING
        assert compiled is not None

        with logging_warnings(f"the loss of {self._loaded.label}"):
            return self._ring_mean(
                lambda: compiled.loss(features, labels, outputs, weights, training=training),
                outputs,
                count,
                over_ring,
            )

    def _ring_mean(
        self,
        loss: Callable[[], Any],
        outputs: Any,
        count: tf.Tensor,
        over_ring: OverRing | None,
    ) -> RingMean:
        """Trace a loss as a sum and a divisor, which a ring adds up."""
        # `num_divisors` is known here: the step for a single rank is traced first.
        reductions = Reductions(count, over_ring if self.num_divisors > 1 else None)
        with reductions.recorded():
            value = loss()
        self.num_divisors = max(self.num_divisors, reductions.num_divisors)
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
            return RingMean(total, tf.cast(weight, total.dtype))
        return reductions.ring_mean(self._scalar(tf.convert_to_tensor(value)), outputs)

    def of_batch(
        self,
        features: Any,
        labels: Any,
        weights: Any = None,
        *,
        non_trainable: Sequence[tf.Tensor] | None = None,
        over_ring: OverRing | None = None,
    ) -> Outcome:
        """Compute the loss and the metrics of a batch without changing the model.

        Args:
            features: The batch's features.
            labels: The batch's labels.
            weights: Example weights; None for equal weights.
            non_trainable: Values of the non-trainable variables; None for their current values.
            over_ring: Sums a row over the ring, for a loss with several divisors; None on a single
                rank.
        """
        model, compiled, variables = (
            self._model,
            self._compiled,
            self._model.non_trainable_variables,
        )
        training = self._mode is Mode.TRAINING
        if self._class_weight:
            label = self._loaded.label
            weights = _weights_of_classes(labels, self._class_weight, label=label)
        count = tf.cast(num_examples(features), tf.float32)
        compiled_metrics = compiled.metrics if compiled is not None else ()
        with without_effects(model, non_trainable=non_trainable, metrics=compiled_metrics) as scope:
            before = [scope.get_current_value(variable) for variable in variables]
            outputs = at_least_float32(model(features, training=training))
            extra_losses = list(model.losses)
            metrics: list[MetricSums] = []
            loss = None
            if compiled is not None:
                if self._uses_model_loss:
                    loss = self._model_loss(features, labels, outputs, weights, count, over_ring)
                if self._uses_model_metrics:
                    metrics = compiled.measure(scope, features, labels, outputs, weights, count)
        after = [scope.get_current_value(variable) for variable in variables]
        if loss is None:
            loss = self._spec_loss(outputs, labels, weights, count, over_ring)
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

    def _spec_loss(
        self,
        outputs: Any,
        labels: Any,
        weights: Any,
        count: tf.Tensor,
        over_ring: OverRing | None = None,
    ) -> RingMean:
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
        with logging_warnings(f"create_loss of {self._loaded.label}"):
            return self._ring_mean(
                lambda: call_declared(create_loss, available), outputs, count, over_ring
            )

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
    methods = {
        Mode.TRAINING: ("train_step", "make_train_function"),
        Mode.EVALUATION: ("test_step", "make_test_function"),
    }
    for method in methods[mode]:
        if overrides(model, method):
            raise UserCodeError(
                f"{type(model).__name__} of {label} overrides {method}, but a ring does not run"
                " the model's step: it sums the gradients of all ranks before it applies the"
                " optimizer.",
                hint="Write the loss as compute_loss(self, x, y, y_pred, sample_weight, training)"
                " and the metrics as compute_metrics(self, x, y, y_pred, sample_weight), and"
                f" remove {method}.",
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
