"""What a batch is worth to a training or an evaluation: its loss and its metrics.

They are the spec's own, else those that the model brings: `compute_loss`, `compute_metrics`, and
what it was compiled with.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.class_weights import weights_of_classes
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
from edl_horovod.frameworks.keras.own_parts import OwnParts, any_number, overrides, sum_over_batch
from edl_horovod.frameworks.values import BATCH_DEPENDENT, are_same_loss, is_sum_over_batch
from edl_horovod.models.calling import call_declared, declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["Objective", "Outcome"]

log = logging.getLogger(__name__)

_TRIED_EXAMPLES = 8


@dataclass(frozen=True)
class Outcome:
    """What comes out of a batch."""

    loss: RingMean
    """With what the layers add."""
    metrics: list[MetricSums]
    after: list[tf.Tensor]
    """Values that the non-trainable variables are to have."""
    is_moved: list[bool]
    """Which of these the model has assigned."""


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
        """Choose whose loss and metrics count, and try those of the model.

        Args:
            loaded: The user's spec.
            model: Built.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            mode: `Mode.TRAINING` or `Mode.EVALUATION`.
            class_weight: Weights of examples by their class; none for the same of all.

        Raises:
            UserCodeError: There is no loss, there are two, the model has a step of its own, or its
                loss or metrics cannot be added up over a ring.
        """
        self._loaded, self._model, self._mode = loaded, model, mode
        self._class_weight = list(class_weight)
        _require_no_step(model, mode, loaded.label)
        if class_weight and len(element_spec) > 2:
            raise UserCodeError(
                f"create_dataset of {loaded.label} gives weights of the examples, and"
                " train.class_weight is set, too.",
                received={"train.class_weight": self._class_weight},
                cure="Use one of them.",
            )
        brings_loss = _choose(loaded, model, "create_loss", "compute_loss")
        if brings_loss and not (model.compiled or overrides(model, "compute_loss")):
            raise UserCodeError(
                f"{loaded.label} lacks loss.",
                cure="Give the class default_loss or the spec create_loss, or its file a function"
                " loss, or compile the model with one, or set loss=...",
            )
        self._brings_loss = brings_loss
        self._brings_metrics = _choose(loaded, model, "create_metrics", "compute_metrics") and (
            brings_loss or model.compiled or overrides(model, "compute_metrics")
        )
        self._is_mean = False
        self.num_divisors = 1
        """How many sums the loss divides by; known when it has been traced."""
        self._own: OwnParts | None = None
        if brings_loss or self._brings_metrics:
            doing = f"Trying loss and metrics of the model of {loaded.label}"
            with user_code(doing, root=loaded.zoo):
                self._own = OwnParts(model, element_spec, has_loss=brings_loss, label=loaded.label)

    def require_mean(self, examples: tuple[Any, ...]) -> None:
        """Refuse a loss that is a sum over the batch; only the first call looks at it.

        Args:
            examples: Features, labels, and weights if any; of at least one example of the data, as
                labels that are made up may well be masked.

        Raises:
            UserCodeError: It is a sum, or a part of it is.
        """
        if self._is_mean:
            return
        few, label = some_examples(examples, 0, _TRIED_EXAMPLES), self._loaded.label
        try:
            with user_code(f"Trying the loss of {label}", root=self._loaded.zoo):
                outputs, added = self._tried(few[0])
                values, adds_up = self._losses_of(few, outputs)
                losses = [values]
                if added and not overrides(self._model, "compute_loss"):
                    again = [self._tried(repeated(few[0], times))[1] for times in (2, 3)]
                    losses += map(list, zip(added, *again, strict=True))
        except UserCodeError as e:
            if not isinstance(e.__cause__, tf.errors.InvalidArgumentError):
                raise
            return  # What does not fit here fails in the step, too, which names the whole batch.
        if any(is_sum_over_batch(*map(float, each)) for each in losses):
            raise sum_over_batch(label)
        once, twice, _ = values
        if not adds_up or not are_same_loss(once, twice):
            log.warning(BATCH_DEPENDENT, label)
        self._is_mean = True

    def _tried(self, features: Any) -> tuple[Any, list[Any]]:
        """What the model gives for examples, and the losses that its layers add."""
        with without_effects(self._model):
            outputs = at_least_float32(self._model(features, training=False))
            return outputs, list(self._model.losses)

    def _losses_of(self, examples: tuple[Any, ...], outputs: Any) -> tuple[list[float], bool]:
        """The loss, without what layers add, of the same examples once, twice and three times.

        And whether the sums of two parts of them are that of the whole.
        """

        def loss(outputs: Any, examples: tuple[Any, ...]) -> Any:
            features, labels, weights = (*examples, None)[:3]
            if self._class_weight:
                label = self._loaded.label
                weights = weights_of_classes(labels, self._class_weight, label=label)
            count = num_examples(features)
            with without_effects(self._model):
                if self._own is None or not self._brings_loss:
                    mean = self._loss_of_spec(outputs, labels, weights, count)
                else:
                    mean = self._own_loss(features, labels, outputs, weights, count)
            return mean.total, mean.weight

        # As the step is traced: for any number of examples.
        traced = tf.function(loss, autograph=False).get_concrete_function(
            *tf.nest.map_structure(any_number, (outputs, examples))
        )

        def of(outputs: Any, examples: Any) -> tuple[float, float]:
            total, weight = traced(outputs, examples)
            return float(total), float(weight)

        some = (outputs, examples)
        sums = [of(*repeated(some, times)) for times in (1, 2, 3)]
        means = [total / weight if weight else 0.0 for total, weight in sums]
        # Two parts, none of them of one example alone.
        count = int(num_examples(examples[0]))
        times = 1 if count > 3 else 3
        whole, middle = repeated(some, times), count * times // 2
        bounds = ((0, middle), (middle, count * times))
        parts = [of(*some_examples(whole, first, last)) for first, last in bounds]
        total, weight = (sum(numbers) for numbers in zip(*parts, strict=True))
        mean = total / weight if weight else 0.0
        return means, self.num_divisors > 1 or are_same_loss(means[2], mean)

    def _own_loss(
        self,
        features: Any,
        labels: Any,
        outputs: Any,
        weights: Any,
        count: tf.Tensor,
        over_ring: OverRing | None = None,
    ) -> RingMean:
        """The loss that the model brings, with what its layers add."""
        parts, training = self._own, self._mode is Mode.TRAINING
        assert parts is not None

        with logging_warnings(f"the loss of {self._loaded.label}"):
            return self._ring_mean(
                lambda: parts.loss(features, labels, outputs, weights, training=training),
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
        """A loss as what a ring adds up."""
        # The step is traced alone first, which tells.
        reductions = Reductions(count, over_ring if self.num_divisors > 1 else None)
        with reductions.recorded():
            value = loss()
        self.num_divisors = max(self.num_divisors, reductions.num_divisors)
        if isinstance(value, tuple | list) and len(value) == 2:
            total, weight = (self._scalar(tf.convert_to_tensor(part)) for part in value)
            if depends_on(weight, outputs):
                raise UserCodeError(
                    f"create_loss of {self._loaded.label} must return a weight that the sum is"
                    " divided by.",
                    received="one that depends on the model's outputs",
                    cure="Return the sum of the losses and the sum of their weights, for instance"
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
        moving: Sequence[tf.Tensor] | None = None,
        over_ring: OverRing | None = None,
    ) -> Outcome:
        """Compute the loss and count the metrics of a batch; nothing of the model changes.

        Args:
            features: Of the examples.
            labels: Of the examples.
            weights: Of the examples; None where they weigh the same.
            moving: Values of the non-trainable variables; None for their own.
            over_ring: Adds a row over the ring, for a loss with several divisors; None alone.
        """
        model, own, variables = self._model, self._own, self._model.non_trainable_variables
        training = self._mode is Mode.TRAINING
        if self._class_weight:
            label = self._loaded.label
            weights = weights_of_classes(labels, self._class_weight, label=label)
        count = tf.cast(num_examples(features), tf.float32)
        counting = own.metrics if own is not None else ()
        with without_effects(model, moving=moving, metrics=counting) as scope:
            before = [scope.get_current_value(variable) for variable in variables]
            outputs = at_least_float32(model(features, training=training))
            extra_losses = list(model.losses)
            metrics: list[MetricSums] = []
            loss = None
            if own is not None:
                if self._brings_loss:
                    loss = self._own_loss(features, labels, outputs, weights, count, over_ring)
                if self._brings_metrics:
                    metrics = own.measure(scope, features, labels, outputs, weights, count)
        after = [scope.get_current_value(variable) for variable in variables]
        if loss is None:
            loss = self._loss_of_spec(outputs, labels, weights, count, over_ring)
            extra = [tf.cast(each, loss.total.dtype) * loss.weight for each in extra_losses]
            loss = replace(loss, total=tf.add_n([loss.total, *extra]))
        if not self._brings_metrics:
            metrics = metric_sums(self._loaded, self._mode, outputs, labels, weights, count)
        return Outcome(
            loss,
            metrics,
            [tf.convert_to_tensor(value) for value in after],
            [new is not old for new, old in zip(after, before, strict=True)],
        )

    def _loss_of_spec(
        self,
        outputs: Any,
        labels: Any,
        weights: Any,
        count: tf.Tensor,
        over_ring: OverRing | None = None,
    ) -> RingMean:
        given = {"outputs": outputs, "labels": labels}
        create_loss = self._loaded.spec.create_loss
        if weights is not None:
            takes = declared(create_loss)
            if "sample_weight" not in takes.names and not takes.takes_any:
                raise UserCodeError(
                    f"create_dataset or train.class_weight gives {self._loaded.label} weights of"
                    " the examples, which its create_loss does not take.",
                    cure="Declare sample_weight in create_loss and weigh each example's loss before"
                    " taking the mean, or give none.",
                )
            given["sample_weight"] = weights
        with logging_warnings(f"create_loss of {self._loaded.label}"):
            return self._ring_mean(
                lambda: call_declared(create_loss, given), outputs, count, over_ring
            )

    def _scalar(self, loss: tf.Tensor) -> tf.Tensor:
        if loss.shape.rank != 0:
            name = "compute_loss" if self._brings_loss else "create_loss"
            raise UserCodeError(
                f"{name} of {self._loaded.label} must return the mean over the batch, a scalar, or"
                " a pair (sum, weight).",
                received={"shape": loss.shape},
                cure="Reduce it, for instance with tf.reduce_mean.",
            )
        return loss


def _choose(loaded: LoadedSpec, model: keras.Model, method: str, own: str) -> bool:
    """Whether the model's part counts: where the spec has none. One of its own is a second one."""
    if not loaded.gives(method):
        return True
    if overrides(model, own):
        raise UserCodeError(
            f"{loaded.label} has {method}, and its model {type(model).__name__} has {own}, which"
            " says the same in another way.",
            cure=f"Remove one of them; {own} alone is called as model.fit calls it.",
        )
    return False


def _require_no_step(model: keras.Model, mode: Mode, label: str) -> None:
    """Refuse a step of the user's: it would change the variables before the ring has the sums."""
    methods = {
        Mode.TRAINING: ("train_step", "make_train_function"),
        Mode.EVALUATION: ("test_step", "make_test_function"),
    }
    for method in methods[mode]:
        if overrides(model, method):
            raise UserCodeError(
                f"{type(model).__name__} of {label} overrides {method}, but on a ring the step is"
                " not the model's: the gradients of all ranks are added before an optimizer is"
                " applied.",
                cure="Write the loss as compute_loss(self, x, y, y_pred, sample_weight, training)"
                " and the metrics as compute_metrics(self, x, y, y_pred, sample_weight), and"
                f" remove {method}.",
            )
