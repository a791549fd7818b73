"""One Keras 3 training step on a ring: weighted, all or nothing (D6, D7, D17)."""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed, Variable
from edl_horovod.frameworks.keras.callbacks import KerasCallbacks
from edl_horovod.frameworks.keras.collectives import catch_failures
from edl_horovod.frameworks.keras.functional import call_functionally, metric_sums, running
from edl_horovod.frameworks.keras.gradients import GradientOptions, add_over_parts, clip
from edl_horovod.frameworks.keras.groups import groups_of
from edl_horovod.frameworks.keras.inlined import inlined
from edl_horovod.frameworks.keras.learning_rate import ScaledLearningRate
from edl_horovod.frameworks.keras.model import KerasModel, by_name
from edl_horovod.frameworks.keras.moving import as_sum, move, salted, sum_dtype
from edl_horovod.frameworks.keras.reduction import Sum, unique_rows, with_values
from edl_horovod.frameworks.values import Batch, StateGroup, StepSums
from edl_horovod.models.calling import call_declared, user_code, wrong_optimizer
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["KerasStep"]

NO_OPTIONS = GradientOptions()
# The step's numbers, in this order, then one sum for each metric.
EXAMPLES, LOSS, WANTS_CHANGE, CONTRIBUTORS, METRICS = range(5)


class KerasStep:
    """The model, its optimizer, and the step that changes them.

    The forward pass is functional (`call_functionally`): what it would change (BatchNorm
    statistics, seeds) comes out as values and is assigned with the gradients' update, after the
    collective.
    """

    def __init__(
        self,
        loaded: LoadedSpec,
        element_spec: tuple[Any, Any],
        *,
        learning_rate: float | None,
        gradients: GradientOptions = NO_OPTIONS,
        scales_learning_rate: bool = False,
    ) -> None:
        """Build the model and the optimizer, and trace the step alone and in a ring.

        Args:
            loaded: The user's spec.
            element_spec: `tf.TypeSpec`s of a batch's features and labels.
            learning_rate: Handed to `create_optimizer`; None leaves its default.
            gradients: How they are made and bounded.
            scales_learning_rate: Whether `scale_learning_rate` will be called.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
        self._loaded = loaded
        self._element_spec = element_spec
        self._options = gradients
        self.model = KerasModel(loaded, element_spec[0])
        self.optimizer = self._make_optimizer(learning_rate)
        self._rate: ScaledLearningRate | None = None
        if scales_learning_rate:
            self._rate = ScaledLearningRate(self.optimizer, label=loaded.label)
        self.optimizer.build(self.model.keras.trainable_variables)
        self._metric_names: list[str] = []
        self._trainable = list(self.model.keras.trainable_variables)
        self._moving = list(self.model.keras.non_trainable_variables)
        scalar = tf.TensorSpec((), tf.float32)
        salt = tf.TensorSpec((), tf.uint32)
        self._zero = tf.constant(0.0)
        self._has_come = tf.Variable(False, trainable=False)
        # Each is traced once, for all kinds of step that need it.
        moving = [tf.TensorSpec(each.shape, each.dtype) for each in self._moving]
        self._part = self._trace(self._part_sums, *element_spec, moving, scalar)
        self._change = tf.function(self._change_if_good, autograph=False)
        self._steps: dict[bool, Any] = {}
        self._empty_steps: dict[bool, Any] = {}
        for in_ring in (False, True):
            self._trace_both(in_ring, scalar, element_spec, salt)

    @property
    def variables(self) -> dict[str, Variable]:
        """All variables of model and optimizer, each once, in the same order everywhere."""
        return by_name([*self.model.keras.variables, *self.optimizer.variables])

    @property
    def model_variables(self) -> dict[str, Variable]:
        """Those of the model alone."""
        return by_name(self.model.keras.variables)

    @property
    def groups(self) -> list[StateGroup]:
        """What can be sent to a newcomer while steps go on."""
        return groups_of(self.variables, self.model.keras, self.optimizer)

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring; see `base.Step.step`.

        Every rank calls this for every step, also one without examples: the step's
        collectives are inside.
        """
        flag = tf.constant(float(wants_change))
        # Not in the step itself: what the user computes there may run, and hang, before anything
        # that does not depend on it, and this rank would look as if it waited for the others.
        self._has_come.assign(False)
        if batch is None:
            with catch_failures():
                values = self._empty_steps[not is_alone](flag, self._zero).numpy().tolist()
        else:
            parts = batch.features, batch.labels
            with running("The training step", self._loaded, *parts), catch_failures():
                run = self._steps[not is_alone]
                salted = tf.constant(salt, tf.uint32)
                values = run(flag, *parts, salted, self._zero).numpy().tolist()
        count = values[EXAMPLES]
        return StepSums(
            num_examples=round(count),
            loss=values[LOSS] / count if count else float("nan"),
            wants_change=values[WANTS_CHANGE] > 0,
            metrics={
                name: value / count if count else float("nan")
                for name, value in zip(self._metric_names, values[METRICS:], strict=True)
            },
        )

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the steps that follow; see `base.Step`."""
        assert self._rate is not None, "a step that was made without it"
        self._rate.scale(factor)

    def finalize(self) -> None:
        """Take the optimizer's moving averages, if it keeps some, as `fit` does at its end."""
        self.optimizer.finalize_variable_values(self._trainable)

    def rehearse(self, batch: Batch) -> None:
        """Run both kinds of step without any effect, so that the first true ones are quick.

        TensorFlow optimises a function's graph, and makes its kernels, when it runs the first time.
        """
        flag, salt = tf.constant(0.0), tf.constant(0, tf.uint32)
        none = tf.nest.map_structure(lambda part: part[:0], (batch.features, batch.labels))
        # What is wrong with the step is wrong with its first true run, too.
        with contextlib.suppress(tf.errors.OpError):
            self._steps[False](
                flag, *none, salt, self._zero
            )  # Without an example nothing is changed.
        # There is no ring yet, so the collective fails, and that before anything is changed.
        with contextlib.suppress(tf.errors.OpError, CollectiveFailed), catch_failures():
            self._steps[True](flag, batch.features, batch.labels, salt, self._zero)

    def has_come(self) -> bool:
        """Whether this rank's part of the step is done, so that it waits for the others."""
        return bool(self._has_come.numpy())

    def callbacks(self, *, num_epochs: int, steps_per_epoch: int | None) -> KerasCallbacks | None:
        """Make the user's callbacks; None where there are none."""
        callbacks = self._loaded.callbacks()
        if not callbacks:
            return None
        return KerasCallbacks(
            callbacks,
            self.model.keras,
            self.optimizer,
            metric_names=self._metric_names,
            num_epochs=num_epochs,
            steps_per_epoch=steps_per_epoch,
            zoo=self._loaded.zoo,
        )

    def _make_optimizer(self, learning_rate: float | None) -> keras.optimizers.Optimizer:
        optimizer = self._loaded.optimizer(learning_rate)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise wrong_optimizer(optimizer, f"create_optimizer of {self._loaded.label}")
        kind = keras.optimizers.LossScaleOptimizer
        if self._options.scales_loss and not isinstance(optimizer, kind):
            return kind(optimizer)
        return optimizer

    @property
    def _is_scaling(self) -> bool:
        """Whether the optimizer undoes a scaling of the loss; one of the user's may, too."""
        is_dynamic = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        return is_dynamic or self.optimizer.loss_scale_factor is not None

    @property
    def _scale(self) -> tf.Tensor:
        """What the optimizer wants the loss, and so the gradients, to be multiplied by."""
        return tf.convert_to_tensor(self.optimizer.scale_loss(tf.constant(1.0)))

    def _trace_both(
        self, in_ring: bool, scalar: Any, element_spec: tuple[Any, Any], salt: Any
    ) -> None:
        # Functions of their own: a concrete function counts a partial's bound argument as missing.
        def step(
            flag: tf.Tensor, features: Any, labels: Any, salt: tf.Tensor, zero: tf.Tensor
        ) -> tf.Tensor:
            sums = self._sums_of_batch(flag, features, labels, salt, zero, in_ring=in_ring)
            return self._finish(sums, in_ring)

        def empty_step(flag: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
            return self._finish(self._empty_sums(flag, zero), in_ring)

        self._steps[in_ring] = self._trace(step, scalar, *element_spec, salt, scalar)
        self._empty_steps[in_ring] = self._trace(empty_step, scalar, scalar)

    def _trace(self, function: Any, *signature: Any) -> Any:
        doing = f"Building the training step of {self._loaded.label} for {self._element_spec}"
        with user_code(doing, root=self._loaded.zoo):
            return tf.function(function, autograph=False).get_concrete_function(*signature)

    def _sums_of_batch(
        self,
        flag: tf.Tensor,
        features: Any,
        labels: Any,
        salt: tf.Tensor,
        zero: tf.Tensor,
        *,
        in_ring: bool,
    ) -> list[Sum]:
        """What this rank adds to the step: for each variable, then the step's numbers."""
        count = _count(features)
        before = [tf.convert_to_tensor(variable.value) for variable in self._moving]
        fed = [
            salted(variable, value, salt)
            for variable, value in zip(self._moving, before, strict=True)
        ]

        def compute(batch: Any, moving: list[tf.Tensor]) -> Any:
            return self._part(*batch, moving, zero)

        def compute_last(batch: Any, moving: list[tf.Tensor]) -> Any:
            # Its gradients go out one by one, while it computes the others.
            return inlined(self._part, *batch, moving, zero) if in_ring else compute(batch, moving)

        sums, after = add_over_parts(
            compute,
            compute_last,
            (features, labels),
            fed,
            num_parts=self._options.num_parts,
            sum_specs=self._part.structured_outputs[0],
        )
        moved = [
            as_sum(old, new, was_fed, count)
            for old, new, was_fed in zip(before, after, fed, strict=True)
        ]
        numbers = tf.concat([[count], sums[-1][:1], [flag, 1.0], sums[-1][1:]], 0)
        return [*sums[:-1], *moved, numbers]

    def _part_sums(
        self, features: Any, labels: Any, moving: list[tf.Tensor], zero: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sums over the examples of a batch: the gradients', and of loss and metrics as one row.

        Args:
            features: Of the examples.
            labels: Of the examples.
            moving: Values of the moving variables.
            zero: 0, of which TensorFlow does not know that: what it knows it computes when it
                optimises the graph, and that with a collective in it would be a call too many.
        """
        count = _count(features)
        trainable = [variable.value for variable in self._trainable]
        with tf.GradientTape() as tape:
            outputs, after, extra_losses = call_functionally(
                self.model.keras, features, training=True, moving=moving
            )
            loss = self._loss(outputs, labels)
            total = tf.add_n([loss, *(tf.cast(extra, loss.dtype) for extra in extra_losses)])
            # The sum over the examples, so that the gradients are sums without a pass over them.
            summed = total * tf.cast(count, total.dtype)
            scaled = total * tf.cast(self._scale, total.dtype)
        gradients = tape.gradient(scaled if self._is_scaling else summed, trainable)
        # The scale is made for means: with sums float16 would not reach as far.
        factor = count if self._is_scaling else None
        sums = [
            self._gradient_sum(variable, gradient, factor, zero)
            for variable, gradient in zip(trainable, gradients, strict=True)
        ]
        row = tf.stack([tf.cast(summed, tf.float32), *self._metrics(outputs, labels, count)])
        return [*sums, row], [tf.convert_to_tensor(value) for value in after]

    def _empty_sums(self, flag: tf.Tensor, zero: tf.Tensor) -> list[Sum]:
        """What a rank without examples adds: nothing, but it is changed as all are."""
        kinds = self._part.structured_outputs[0]
        sums = [
            _no_rows(kind, zero) if isinstance(kind, tf.IndexedSlices) else _fill(kind, zero)
            for kind in kinds[:-1]
        ]
        moved = [
            tf.fill(variable.shape, tf.cast(zero, sum_dtype(variable.value)))
            for variable in self._moving
        ]
        numbers = tf.stack([zero, zero, flag, zero, *[zero for _ in self._metric_names]])
        return [*sums, *moved, numbers]

    def _finish(self, sums: list[Sum], in_ring: bool) -> tf.Tensor:
        """Add the sums over the ring, then update, the same on all ranks."""
        if in_ring:
            with tf.control_dependencies(_flat(sums)):
                self._has_come.assign(True)
            num_trainable = len(self._trainable)
            sums = self._options.reduction.add(sums[:num_trainable], sums[num_trainable:])
        # All sums are there before any variable changes.
        with tf.control_dependencies(_flat(sums)):
            return self._change(sums)

    def _gradient_sum(
        self, variable: tf.Variable, gradient: Any, factor: tf.Tensor | None, zero: tf.Tensor
    ) -> Sum:
        if gradient is None:
            return _fill(variable, zero)
        if isinstance(gradient, tf.IndexedSlices) and self._options.num_parts == 1:
            shape = tf.constant([*variable.shape], gradient.indices.dtype)
            gradient = unique_rows(tf.IndexedSlices(gradient.values, gradient.indices, shape))
        else:
            gradient = tf.convert_to_tensor(gradient)
        if factor is None:
            return gradient
        return with_values(gradient, lambda values: values * tf.cast(factor, values.dtype))

    def _change_if_good(self, reduced: list[Sum]) -> tf.Tensor:
        """Change the variables, if the step's loss is finite; returns the step's numbers."""
        *totals, numbers = reduced
        gradient_sums, moved = totals[: len(self._trainable)], totals[len(self._trainable) :]

        def change() -> tf.Tensor:
            count = numbers[EXAMPLES]
            gradients = [
                with_values(total, lambda values: values / tf.cast(count, values.dtype))
                for total in gradient_sums
            ]
            gradients = clip(gradients, self._options, self._scale)
            with self._rate.applied() if self._rate is not None else contextlib.nullcontext():
                self.optimizer.apply_gradients(zip(gradients, self._trainable, strict=True))
            for variable, total in zip(self._moving, moved, strict=True):
                move(variable.value, total, count, numbers[CONTRIBUTORS])
            return tf.constant(True)

        is_good = tf.math.is_finite(numbers[LOSS]) & (numbers[EXAMPLES] > 0)
        done = tf.cond(is_good, change, lambda: tf.constant(False))
        with tf.control_dependencies([done]):
            return tf.identity(numbers)

    def _loss(self, outputs: Any, labels: Any) -> tf.Tensor:
        loss = tf.convert_to_tensor(
            call_declared(self._loaded.spec.create_loss, {"outputs": outputs, "labels": labels})
        )
        if loss.shape.rank != 0:
            raise UserCodeError(
                f"create_loss of {self._loaded.label} must return the mean over the batch, a"
                " scalar.",
                received={"shape": loss.shape},
                cure="Reduce it, for instance with tf.reduce_mean.",
            )
        return loss

    def _metrics(self, outputs: Any, labels: Any, count: tf.Tensor) -> list[tf.Tensor]:
        found = metric_sums(self._loaded, Mode.TRAINING, outputs, labels, count)
        self._metric_names = list(found)
        return [each.sums[0] for each in found.values()]


def _fill(like: Any, value: tf.Tensor) -> tf.Tensor:
    return tf.fill(like.shape, tf.cast(value, like.dtype))


def _no_rows(like: tf.IndexedSlices, zero: tf.Tensor) -> tf.IndexedSlices:
    """None of the rows of an array; as `zero`, nothing that TensorFlow could know beforehand."""
    count = tf.cast(zero, tf.int32)
    values = tf.fill([count, *like.values.shape[1:]], tf.cast(zero, like.values.dtype))
    indices = tf.fill([count], tf.cast(zero, like.indices.dtype))
    # `like` is of another graph.
    return tf.IndexedSlices(values, indices, tf.constant(tf.get_static_value(like.dense_shape)))


def _flat(sums: list[Sum]) -> list[tf.Tensor]:
    return list(tf.nest.flatten(sums, expand_composites=True))


def _count(features: Any) -> tf.Tensor:
    """Number of examples, as a float."""
    return tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float32)
