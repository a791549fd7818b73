"""The graphs of a training step: sums of a batch, their reduction, and the change that follows."""

import contextlib
import logging
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.denominators import OverRing
from edl_horovod.frameworks.keras.functional import MetricSums, num_examples
from edl_horovod.frameworks.keras.gradients import GradientOptions, add_over_parts, are_usable, clip
from edl_horovod.frameworks.keras.inlined import inlined
from edl_horovod.frameworks.keras.learning_rate import ScaledLearningRate
from edl_horovod.frameworks.keras.moving import as_sum, move, salted, sum_dtype
from edl_horovod.frameworks.keras.objective import Objective
from edl_horovod.frameworks.keras.reduction import (
    Sum,
    add_over_ring,
    unique_rows,
    with_values,
)
from edl_horovod.frameworks.keras.ring_sums import RingSums, once_made, sum_row

__all__ = ["EXAMPLES", "LOSS", "LOSS_WEIGHT", "METRICS", "WANTS_CHANGE", "StepGraph"]

log = logging.getLogger(__name__)

# The step's numbers, in this order, then one sum for each metric.
EXAMPLES, LOSS, LOSS_WEIGHT, WANTS_CHANGE, CONTRIBUTORS, METRICS = range(6)


class StepGraph:
    """The step, traced for the variables that are trained now.

    The forward pass is functional (`without_effects`): what it would change (BatchNorm statistics,
    seeds) comes out as values and is assigned with the gradients' update, after the collective.
    What a step does not change is not reduced, and keeps its bits.
    """

    def __init__(
        self,
        model: keras.Model,
        objective: Objective,
        optimizer: keras.optimizers.Optimizer,
        element_spec: tuple[Any, ...],
        *,
        options: GradientOptions,
        ring_sums: RingSums,
        is_synchronised: bool,
        rate: ScaledLearningRate | None,
        has_come: tf.Variable,
    ) -> None:
        """Trace the step alone and in a ring, with and without examples.

        Args:
            model: Built.
            objective: Its loss and metrics in training.
            optimizer: Built for all variables that are trained now.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            options: How gradients are made and bounded.
            ring_sums: Of the model's steps.
            is_synchronised: Whether layers of the model sum over the ring within a pass.
            rate: The optimizer's learning rate, if it is to be multiplied.
            has_come: Becomes true as soon as this rank's sums are made.
        """
        self._objective, self._optimizer, self._options = objective, optimizer, options
        self._ring_sums, self._rate, self._has_come = ring_sums, rate, has_come
        self._trainable = list(model.trainable_variables)
        self._others = list(model.non_trainable_variables)
        # Tracing a batch tells which of them a step changes.
        self._trained: list[keras.Variable] = []
        self._is_moved: list[bool] = []
        self._metrics: list[MetricSums] = []
        self.metric_names: list[str] = []
        """Of the values at the end of what the step gives."""
        scalar = tf.TensorSpec((), tf.float32)
        salt = tf.TensorSpec((), tf.uint32)
        # Each is traced once, for all kinds of step that need it.
        others = [tf.TensorSpec(each.shape, each.dtype) for each in self._others]
        self._row_specs: dict[str, tf.TensorSpec] = {}
        alone = _trace(self._traceable_part(in_ring=False), element_spec, others, scalar)
        self._parts = {False: alone, True: alone}
        if objective.num_divisors > 1 and options.num_parts > 1:
            raise UserCodeError(
                "The loss has terms that are divided by different sums, which are not known when"
                " the first part of a batch is computed.",
                received={"train.accumulate_steps": options.num_parts},
                cure="Set train.accumulate_steps=1.",
            )
        if is_synchronised or objective.num_divisors > 1:
            in_ring = self._traceable_part(in_ring=True)
            self._parts[True] = _trace(in_ring, element_spec, others, scalar)
        self._moving = [v for v, is_one in zip(self._others, self._is_moved, strict=True) if is_one]
        self._change = tf.function(self._change_if_good, autograph=False)
        self.steps: dict[bool, Any] = {}
        """From whether there is a ring to the step of (flag, examples, salt, 0)."""
        self.empty_steps: dict[bool, Any] = {}
        """The same for a rank without examples, of (flag, 0)."""
        for in_ring in (False, True):
            self._trace_both(in_ring, scalar, element_spec, salt)

    @property
    def num_metric_sums(self) -> int:
        """How many numbers the metrics count; they follow the first ones of what a step gives."""
        return sum(each.size for each in self._metrics)

    def metric_values(self, counted: Any, count: Any) -> dict[str, float]:
        """The metrics by name, of what they have counted in some steps of so many examples."""
        return {name: float(value) for name, value in self._values(counted, count).items()}

    def _values(self, counted: Any, count: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for metric, its in zip(self._metrics, self._split(counted), strict=True):
            found |= metric.values(its, count)
        return found

    def _split(self, sums: Any) -> list[Any]:
        return list(tf.split(sums, [each.size for each in self._metrics])) if self._metrics else []

    def _trace_both(
        self, in_ring: bool, scalar: Any, element_spec: tuple[Any, ...], salt: Any
    ) -> None:
        # Functions of their own: a concrete function counts a partial's bound argument as missing.
        def step(
            flag: tf.Tensor, examples: tuple[Any, ...], salt: tf.Tensor, zero: tf.Tensor
        ) -> tf.Tensor:
            sums = self._sums_of_batch(flag, examples, salt, zero, in_ring=in_ring)
            return self._finish(sums, in_ring)

        def empty_step(flag: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
            if in_ring:
                # All ranks: those with examples make the same sums within their passes.
                totals = [
                    sum_row(_fill(row, zero), number, name)
                    for number, (name, row) in enumerate(self._row_specs.items())
                ]
                zero = once_made(totals, zero, zero)
            return self._finish(self._empty_sums(flag, zero), in_ring)

        self.steps[in_ring] = _trace(step, scalar, element_spec, salt, scalar)
        self.empty_steps[in_ring] = _trace(empty_step, scalar, scalar)

    def _sums_of_batch(
        self,
        flag: tf.Tensor,
        examples: tuple[Any, ...],
        salt: tf.Tensor,
        zero: tf.Tensor,
        *,
        in_ring: bool,
    ) -> list[Sum]:
        """What this rank adds to the step: for each variable, then the step's numbers."""
        count = _count(examples)
        before = [tf.convert_to_tensor(variable.value) for variable in self._others]
        fed = [
            salted(variable, value, salt)
            for variable, value in zip(self._others, before, strict=True)
        ]

        part_sums = self._parts[in_ring]

        def compute(batch: Any, others: list[tf.Tensor]) -> Any:
            return part_sums(batch, others, zero)

        def compute_last(batch: Any, others: list[tf.Tensor]) -> Any:
            # Its gradients go out one by one, while it computes the others.
            return inlined(part_sums, batch, others, zero) if in_ring else compute(batch, others)

        sums, after = add_over_parts(
            compute,
            compute_last,
            examples,
            fed,
            num_parts=self._options.num_parts,
            sum_specs=part_sums.structured_outputs[0],
        )
        moved = [
            as_sum(old, new, was_fed, count)
            for old, new, was_fed, is_one in zip(before, after, fed, self._is_moved, strict=True)
            if is_one
        ]
        numbers = tf.concat([[count], sums[-1][:2], [flag, 1.0], sums[-1][2:]], 0)
        return [*sums[:-1], *moved, numbers]

    def _traceable_part(self, *, in_ring: bool) -> Any:
        """`_part_sums`, alone or with layers that are synchronised over the ring."""

        def part_sums(examples: tuple[Any, ...], others: list[tf.Tensor], zero: tf.Tensor) -> Any:
            with self._ring_sums.tracing(in_ring=in_ring) as totals:
                over_ring = self._sum_divisors if in_ring else None
                (*sums, row), after = self._part_sums(examples, others, zero, over_ring)
            self._row_specs = {
                name: tf.TensorSpec(total.shape, total.dtype) for name, total in totals.items()
            }
            # Also those that nothing depends on: a rank without examples makes all of them.
            return [*sums, once_made(totals.values(), row, zero)], after

        return part_sums

    def _sum_divisors(self, row: tf.Tensor) -> tf.Tensor:
        """The sum over the ring of what a mean in the loss is divided by, and of the examples."""
        return self._ring_sums.add(
            row, "loss", "The loss, which divides by several sums,", "Leave out @tf.function."
        )

    def _part_sums(
        self,
        examples: tuple[Any, ...],
        others: list[tf.Tensor],
        zero: tf.Tensor,
        over_ring: OverRing | None,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sums over the examples of a batch: the gradients', and of loss and metrics as one row.

        Args:
            examples: Features, labels, and weights if any.
            others: Values of the non-trainable variables.
            zero: 0, of which TensorFlow does not know that: what it knows it computes when it
                optimises the graph, and that with a collective in it would be a call too many.
            over_ring: Adds a row over the ring; None alone.
        """
        trainable = [variable.value for variable in self._trainable]
        with tf.GradientTape() as tape:
            tape.watch(trainable)  # Keras' variables know what is trained; TensorFlow's need not.
            outcome = self._objective.of_batch(*examples, moving=others, over_ring=over_ring)
            # The sum, so that the gradients are sums without a pass over them.
            summed, weight = outcome.loss.total, outcome.loss.weight
            # The scale is made for means: with sums float16 would not reach as far. It is the same
            # on all ranks, as gradients may pass from one to another.
            factor = self._options.reduction.batch_size if self._is_scaling else None
            scaled = (
                summed if factor is None else summed * tf.cast(self._scale, summed.dtype) / factor
            )
        gradients = tape.gradient(scaled, trainable)
        if (has_gradient := outcome.loss.has_gradient) is not None:
            gradients = [
                None
                if gradient is None
                else with_values(
                    gradient,
                    lambda values: tf.math.multiply_no_nan(
                        values, tf.cast(has_gradient, values.dtype)
                    ),
                )
                for gradient in gradients
            ]
        # As Keras' optimizers do: what the loss does not depend on is not even decayed.
        found = [
            (variable, _of_known_shape(gradient, variable))
            for variable, gradient in zip(self._trainable, gradients, strict=True)
            if gradient is not None
        ]
        if self._trainable and not found:
            raise UserCodeError(
                "The loss depends on none of the model's trainable variables.",
                cure="Compute it of the model's outputs with TensorFlow or keras.ops.",
            )
        self._trained = [variable for variable, _ in found]
        if len(found) < len(self._trainable):
            trained = {id(variable) for variable in self._trained}
            rest = [each.path for each in self._trainable if id(each) not in trained]
            log.warning("the loss does not depend on %s: it stays as it is", ", ".join(rest))
        self._metrics, self._is_moved = outcome.metrics, outcome.is_moved
        sums = [self._gradient_sum(variable, each, factor) for variable, each in found]
        row = [tf.cast([summed, weight], tf.float32), *(m.sums for m in outcome.metrics)]
        return [*sums, tf.concat(row, 0)], outcome.after

    def _empty_sums(self, flag: tf.Tensor, zero: tf.Tensor) -> list[Sum]:
        """What a rank without examples adds: nothing, but it is changed as all are."""
        kinds = self._parts[False].structured_outputs[0]
        sums = [
            _no_rows(kind, zero) if isinstance(kind, tf.IndexedSlices) else _fill(kind, zero)
            for kind in kinds[:-1]
        ]
        moved = [
            tf.fill(variable.shape, tf.cast(zero, sum_dtype(variable.value)))
            for variable in self._moving
        ]
        rest = [zero for _ in range(self.num_metric_sums)]
        return [*sums, *moved, tf.stack([zero, zero, zero, flag, zero, *rest])]

    def _finish(self, sums: list[Sum], in_ring: bool) -> tf.Tensor:
        """Add the sums over the ring, then update, the same on all ranks."""
        if in_ring:
            with tf.control_dependencies(_flat(sums)):
                self._has_come.assign(True)
            num_trained = len(self._trained)
            sums = add_over_ring(sums[:num_trained], sums[num_trained:], self._options.reduction)
        # All sums are there before any variable changes.
        with tf.control_dependencies(_flat(sums)):
            return self._change(sums)

    def _gradient_sum(self, variable: keras.Variable, gradient: Any, factor: int | None) -> Sum:
        if isinstance(gradient, tf.IndexedSlices) and self._options.num_parts == 1:
            shape = tf.constant([*variable.shape], gradient.indices.dtype)
            gradient = unique_rows(tf.IndexedSlices(gradient.values, gradient.indices, shape))
        else:
            # Where a layer of text gives a length that is not known yet, the gradient's is not.
            gradient = tf.ensure_shape(gradient, variable.shape)
        if factor is None:
            return gradient
        return with_values(gradient, lambda values: values * tf.cast(factor, values.dtype))

    def _change_if_good(self, reduced: list[Sum]) -> tf.Tensor:
        """Change the variables, if the step's loss and gradients are finite; returns its numbers.

        What the metrics have counted, their values, and whether the gradients are finite stand at
        the end.
        """
        *totals, numbers = reduced
        gradient_sums, moved = totals[: len(self._trained)], totals[len(self._trained) :]
        count, weight = numbers[EXAMPLES], numbers[LOSS_WEIGHT]

        def change() -> tf.Tensor:
            # Where nothing counts, the gradients of a masked loss are 0 in Keras.
            gradients = [
                with_values(
                    total,
                    lambda values: tf.math.divide_no_nan(values, tf.cast(weight, values.dtype)),
                )
                for total in gradient_sums
            ]
            gradients = clip(gradients, self._options, self._scale)
            with self._rate.applied() if self._rate is not None else contextlib.nullcontext():
                self._optimizer.apply(gradients, self._trained)
            for variable, gradient in zip(self._trained, gradients, strict=True):
                if isinstance(gradient, tf.IndexedSlices):
                    # Writing some rows leaves a variable such that each reading copies all of it.
                    tf.raw_ops.DisableCopyOnRead(resource=variable.value.handle)
            for variable, total in zip(self._moving, moved, strict=True):
                move(variable.value, total, count, numbers[CONTRIBUTORS])
            return tf.constant(True)

        are_good = are_usable(gradient_sums, self._optimizer)
        is_good = tf.math.is_finite(numbers[LOSS]) & (count > 0) & are_good
        done = tf.cond(is_good, change, lambda: tf.constant(False))
        its = zip(self._metrics, self._split(numbers[METRICS:]), strict=True)
        counted = tf.concat([numbers[:METRICS], *(each.counted(of, count) for each, of in its)], 0)
        values = self._values(counted[METRICS:], count)
        self.metric_names = list(values)
        with tf.control_dependencies([done]):
            row = [tf.reshape(tf.cast(v, tf.float32), [1]) for v in (*values.values(), are_good)]
            return tf.concat([counted, *row], 0)

    @property
    def _is_scaling(self) -> bool:
        """Whether the optimizer undoes a scaling of the loss; one of the user's may, too."""
        is_dynamic = isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer)
        return is_dynamic or self._optimizer.loss_scale_factor is not None

    @property
    def _scale(self) -> tf.Tensor:
        """What the optimizer wants the loss, and so the gradients, to be multiplied by."""
        return tf.convert_to_tensor(self._optimizer.scale_loss(tf.constant(1.0)))


def _trace(function: Any, *signature: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*signature)


def _of_known_shape(gradient: Sum, variable: keras.Variable) -> Sum:
    """A gradient whose shape is known also where a feature's is not, as of sparse features."""
    if isinstance(gradient, tf.IndexedSlices) or gradient.shape.is_fully_defined():
        return gradient
    return tf.ensure_shape(gradient, variable.shape)  # An op, so that copies of the graph have it.


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


def _count(examples: tuple[Any, ...]) -> tf.Tensor:
    """Number of examples, as a float."""
    return tf.cast(num_examples(examples[0]), tf.float32)
