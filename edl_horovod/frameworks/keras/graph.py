"""The graphs of a training step: sums of a batch, their reduction, and the update."""

import contextlib
import functools
import itertools
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.adversarial import Attack
from edl_horovod.frameworks.keras.denominators import OverRing
from edl_horovod.frameworks.keras.functional import num_examples, state_variables, traced
from edl_horovod.frameworks.keras.gradients import (
    Sum,
    add_over_parts,
    add_over_ring,
    are_usable,
    clip,
    clipped_sums,
    combine,
    unique_rows,
)
from edl_horovod.frameworks.keras.metrics import MetricSums, split_sums
from edl_horovod.frameworks.keras.objective import Objective, Outcome
from edl_horovod.frameworks.keras.optimizer import ScaledLearningRate
from edl_horovod.frameworks.keras.phases import PhaseObjective
from edl_horovod.frameworks.keras.ring_sums import RingSums, after_sums, sum_row
from edl_horovod.frameworks.privacy import noise
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import (
    CONTRIBUTORS,
    EXAMPLES,
    LOSS,
    LOSS_WEIGHT,
    METRICS,
    StepSums,
)

log = logging.getLogger(__name__)

_SALT_STEP = 0x9E3779B9
"""Between the salts of two examples; those of ranks are small numbers."""


class StepGraph:
    """The step, traced for the variables that are trained now.

    The forward pass is functional (`without_effects`): the new values of variables that it would
    assign (BatchNorm statistics, seeds) are outputs, which are reduced with the gradients and
    assigned with the update. Variables that a step does not change are not reduced, so they keep
    their bits.
    """

    def __init__(
        self,
        model: keras.Model,
        trainable: Sequence[keras.Variable],
        objective: Objective | PhaseObjective,
        optimizer: keras.optimizers.Optimizer,
        element_spec: tuple[Any, ...],
        *,
        options: StepOptions,
        ring_sums: RingSums,
        rate: ScaledLearningRate | None,
        computed_at: tf.Variable,
        attack: Attack | None = None,
        anchors: Mapping[int, tf.Variable] = MappingProxyType({}),
    ) -> None:
        """Trace what the step does with the user's model; `trace_step` traces the rest.

        Args:
            model: The built model.
            trainable: Its variables that the step trains.
            objective: The loss and metrics of the step.
            optimizer: An optimizer that is built for all variables that are trained now.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            options: How gradients are computed, clipped and reduced.
            ring_sums: Sums over the ring within the step's passes.
            rate: The optimizer's learning rate if it is scaled, else None.
            computed_at: Set by the step to the time at which this rank's sums are computed, in
                seconds since the epoch.
            attack: Changes the examples first; then `element_spec` has the key of their noise.
            anchors: The weights that FedProx pulls towards, by the id of their variables; empty
                without it.
        """
        self._objective, self._optimizer, self._options = objective, optimizer, options
        self._ring_sums, self._rate, self._computed_at = ring_sums, rate, computed_at
        self._attack, self._anchors = attack, anchors
        self._trainable = list(trainable)
        self._non_trainable = state_variables(model)
        self._model_state = [*model.variables, *(v for m in model.metrics for v in m.variables)]
        # Set while a batch is traced: the variables that the loss depends on or that are assigned.
        self._trained: list[keras.Variable] = []
        self._is_assigned: list[bool] = []
        self._metrics: list[MetricSums] = []
        self._bucket_names: list[str] = []
        self._metric_names: list[str] = []
        """Names of the metric values at the end of a step's result."""
        self._row_specs: dict[str, tf.TensorSpec] = {}
        # Each function is traced once and shared by the steps that need it.
        alone = self._trace_part(element_spec, in_ring=False)
        self._parts = {False: alone, True: alone}
        if objective.num_divisors > 1 and options.num_parts > 1:
            raise UserCodeError(
                "The loss has terms with different divisors, which are not known until all parts of"
                " a batch are computed.",
                received={"train.accumulate_steps": options.num_parts},
                hint="Set train.accumulate_steps=1.",
            )
        if ring_sums.has_layers or objective.num_divisors > 1:
            self._parts[True] = self._trace_part(element_spec, in_ring=True)
        self._assigned = list(itertools.compress(self._non_trainable, self._is_assigned))
        self._update = tf.function(self._update_if_finite, autograph=False)
        self._element_spec = element_spec
        self.steps: dict[bool, Any] = {}
        """By whether there is a ring: the step as a function of (flag, examples, salt, 0)."""
        self.empty_steps: dict[bool, Any] = {}
        """The same for a rank without examples: a function of (flag, 0)."""

    @property
    def other_variables(self) -> dict[str, tf.Variable]:
        """The variables that a batch's sums use besides those of the model and of the optimizer.

        As a weight of a loss that a callback changes, and the state of Keras' own generator of
        random numbers where it is drawn from. By name, in the same order on all ranks.
        """
        known = {id(variable.value) for variable in (*self._trainable, *self._model_state)}
        known |= {id(variable.value) for variable in self._optimizer.variables}
        known |= {id(variable) for variable in (self._computed_at, *self._anchors.values())}
        for metric in self._metrics:
            if metric.metric is not None:
                known |= {id(variable.value) for variable in metric.metric.variables}
        if self._attack is not None:
            known.add(id(self._attack.noise))
        used = [variable.value for variable in self._assigned]
        used += [variable for part in self._parts.values() for variable in part.graph.variables]
        others = {id(variable): variable for variable in used if id(variable) not in known}
        return {f"other/{index}": variable for index, variable in enumerate(others.values())}

    @property
    def statistics(self) -> list[str]:
        """The variables, other than the state of random numbers, that examples change directly."""
        return [variable.path for variable in self._assigned if not _is_seed(variable)]

    @property
    def num_metric_sums(self) -> int:
        """The number of the metrics' sums, which start at METRICS in a step's result."""
        return sum(metric.size for metric in self._metrics)

    def results(self, values: list[float]) -> StepSums:
        """Read the results of a step from the numbers that it returned."""
        count, weight = values[EXAMPLES], values[LOSS_WEIGHT]
        metrics_end = METRICS + self.num_metric_sums
        numbers_at = metrics_end + len(self._metric_names)
        has_finite_gradients, exchange_seconds, apply_seconds, *times = values[numbers_at:]
        return StepSums.of(
            values,
            # Keras defines a fully masked loss as 0.
            loss=values[LOSS] / (weight or 1.0) if count else float("nan"),
            metrics=dict(zip(self._metric_names, values[metrics_end:numbers_at], strict=True)),
            metric_sums=np.array(values[METRICS:metrics_end]),
            has_finite_gradients=bool(has_finite_gradients),
            exchange_seconds=exchange_seconds,
            apply_seconds=apply_seconds,
            # A rank that is alone reduces nothing.
            reductions=tuple(zip(self._bucket_names, times[::2], times[1::2], strict=False)),
        )

    def metric_values(self, counted: Any, count: Any) -> dict[str, float]:
        """Compute the metrics by name from their summed state over `count` examples."""
        return {
            name: float(value)
            for metric, state in split_sums(self._metrics, counted)
            for name, value in metric.values(state, count).items()
        }

    def trace_step(self, *, in_ring: bool) -> None:
        """Trace the step for a single rank or for a ring.

        Raises:
            Exception: Whatever the user's optimizer or metrics raise.
        """

        # Not partials: a concrete function treats a partial's bound argument as missing.
        def step(
            flag: tf.Tensor, examples: tuple[Any, ...], salt: tf.Tensor, zero: tf.Tensor
        ) -> tf.Tensor:
            sums = self._sums_of_batch(flag, examples, salt, zero, in_ring=in_ring)
            return self._finish(sums, in_ring)

        scalar, salt_spec = tf.TensorSpec((), tf.float32), tf.TensorSpec((), tf.uint32)
        self.steps[in_ring] = traced(step, scalar, self._element_spec, salt_spec, scalar)

    def trace_empty_step(self, *, in_ring: bool) -> None:
        """Trace the step of a rank without examples; see `trace_step`."""

        def empty_step(flag: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
            if in_ring:
                # All ranks reach these: with examples, they run the same sums within their passes.
                totals = [
                    sum_row(_fill(row, zero), index, name)
                    for index, (name, row) in enumerate(self._row_specs.items())
                ]
                zero = after_sums(totals, zero, zero)
            return self._finish(self._empty_sums(flag, zero), in_ring)

        scalar = tf.TensorSpec((), tf.float32)
        self.empty_steps[in_ring] = traced(empty_step, scalar, scalar)

    def _sums_of_batch(
        self,
        flag: tf.Tensor,
        examples: tuple[Any, ...],
        salt: tf.Tensor,
        zero: tf.Tensor,
        *,
        in_ring: bool,
    ) -> list[Sum]:
        """Compute this rank's sums: one for each changed variable, then the row of numbers."""
        count = tf.cast(num_examples(examples[0]), tf.float32)
        before = [tf.convert_to_tensor(variable.value) for variable in self._non_trainable]
        salted_values = list(map(_salted, self._non_trainable, before, itertools.repeat(salt)))
        part_sums = self._parts[in_ring]
        # Inlined, so that each gradient is sent while the others are computed.
        last_sums = functools.partial(inlined, part_sums) if in_ring else part_sums
        sums, after = add_over_parts(
            lambda batch, non_trainable: part_sums(batch, non_trainable, zero),
            lambda batch, non_trainable: last_sums(batch, non_trainable, zero),
            examples,
            salted_values,
            num_parts=self._options.num_parts,
            sum_specs=part_sums.structured_outputs[0],
        )
        states = zip(salted_values, after, strict=True)
        state_sums = [
            _to_sum(*state, count) for state in itertools.compress(states, self._is_assigned)
        ]
        numbers = tf.concat([[count], sums[-1][:2], [flag, 1.0], sums[-1][2:]], 0)
        return [*sums[:-1], *state_sums, numbers]

    def _trace_part(self, element_spec: tuple[Any, ...], *, in_ring: bool) -> Any:
        """Trace `_part_sums`, for a single rank or with sums over the ring inside."""

        def part_sums(
            examples: tuple[Any, ...], non_trainable: list[tf.Tensor], zero: tf.Tensor
        ) -> Any:
            with self._ring_sums.tracing(in_ring=in_ring) as totals:
                over_ring = self._sum_divisors if in_ring else None
                (*sums, row), after = self._part_sums(examples, non_trainable, zero, over_ring)
            self._row_specs = {
                name: tf.TensorSpec(total.shape, total.dtype) for name, total in totals.items()
            }
            # Also sums without consumers, because a rank without examples computes all of them.
            return [*sums, after_sums(totals.values(), row, zero)], after

        non_trainable = [tf.TensorSpec(v.shape, v.dtype) for v in self._non_trainable]
        return traced(part_sums, element_spec, non_trainable, tf.TensorSpec((), tf.float32))

    def _sum_divisors(self, row: tf.Tensor) -> tf.Tensor:
        """Sum a row over the ring: the divisor of a mean in the loss, and the examples."""
        return self._ring_sums.add(
            row, "loss", "The loss, which has several divisors,", "Remove @tf.function."
        )

    def _part_sums(
        self,
        examples: tuple[Any, ...],
        non_trainable: list[tf.Tensor],
        zero: tf.Tensor,
        over_ring: OverRing | None,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Compute sums over a batch: one for each gradient, and a row for the loss and the metrics.

        Args:
            examples: Features, labels, and weights if any.
            non_trainable: Values of the non-trainable variables.
            zero: 0, but unknown to TensorFlow, which would otherwise evaluate constant parts while
                it optimizes the graph, and so run the collectives in them once too often.
            over_ring: Sums a row over the ring; None on a single rank.
        """
        if self._attack is not None:
            assert isinstance(self._objective, Objective)
            objective, ((features, key), *others) = self._objective, examples
            features = self._attack(
                features, key, lambda values: objective.loss_to_raise(values, tuple(others))
            )
            examples = (features, *others)
        differentiate = self._differentiate if self._options.privacy is None else self._clip_each
        outcome, gradients, factor = differentiate(examples, non_trainable, over_ring)
        # As in Keras: the optimizer skips variables that the loss does not depend on.
        pairs = [
            (variable, gradient)
            for variable, gradient in zip(self._trainable, gradients, strict=True)
            if gradient is not None
        ]
        if self._trainable and not pairs:
            raise UserCodeError(
                "The loss does not depend on any trainable variable of the model.",
                hint="Compute it from the model's outputs with TensorFlow or keras.ops.",
            )
        self._trained = [variable for variable, _ in pairs]
        if len(pairs) < len(self._trainable):
            trained_ids = {id(variable) for variable in self._trained}
            independent = [v.path for v in self._trainable if id(v) not in trained_ids]
            log.warning(
                "the loss does not depend on %s: these variables are not trained",
                ", ".join(independent),
            )
        self._metrics, self._is_assigned = outcome.metrics, outcome.is_assigned
        sums = [self._gradient_sum(variable, gradient) for variable, gradient in pairs]
        if (has_gradient := outcome.loss.has_gradient) is not None:
            sums = [combine(tf.math.multiply_no_nan, value, has_gradient) for value in sums]
        if factor is not None:
            sums = [combine(tf.multiply, value, factor) for value in sums]
        loss = [outcome.loss.total, outcome.loss.weight]
        row = [tf.cast(loss, tf.float32), *(m.sums for m in outcome.metrics)]
        return [*sums, tf.concat(row, 0)], outcome.after

    def _differentiate(
        self,
        examples: tuple[Any, ...],
        non_trainable: list[tf.Tensor],
        over_ring: OverRing | None,
    ) -> tuple[Outcome, list[Sum | None], int | None]:
        """Compute the gradients of the summed loss, and by what they must be multiplied."""
        trainable = [variable.value for variable in self._trainable]
        with tf.GradientTape() as tape:
            tape.watch(trainable)  # Keras, not TensorFlow, decides what is trainable.
            outcome = self._objective.of_batch(
                examples, non_trainable=non_trainable, over_ring=over_ring
            )
            # Differentiate the sum, so that the gradients need no further pass to become sums.
            summed = outcome.loss.total
            # The loss scale is meant for means; with sums float16 would overflow earlier. All ranks
            # use the same factor, because synchronized layers exchange gradients.
            factor = self._options.reduction.batch_size if self._is_scaling else None
            scaled = (
                summed if factor is None else summed * tf.cast(self._scale, summed.dtype) / factor
            )
        return outcome, tape.gradient(scaled, trainable), factor

    def _clip_each(
        self,
        examples: tuple[Any, ...],
        non_trainable: list[tf.Tensor],
        over_ring: OverRing | None,
    ) -> tuple[Outcome, list[Sum | None], None]:
        """Compute the sums of the gradients of single examples, each of which is clipped."""
        assert self._options.privacy is not None
        outcome = self._objective.of_batch(
            examples, non_trainable=non_trainable, over_ring=over_ring
        )
        trainable = [variable.value for variable in self._trainable]
        is_trained = [False for _ in trainable]

        def gradients_of(example: Any, index: tf.Tensor) -> list[tf.Tensor]:
            # Each example draws random numbers of its own.
            salts = itertools.repeat(tf.cast(index, tf.int64) * _SALT_STEP)
            values = list(map(_salted, self._non_trainable, non_trainable, salts))
            with tf.GradientTape() as tape:
                tape.watch(trainable)
                loss = self._objective.of_batch(example, non_trainable=values).loss
                mean = tf.math.divide_no_nan(loss.total, loss.weight)
            gradients = tape.gradient(mean, trainable)
            is_trained[:] = [gradient is not None for gradient in gradients]
            dense = [
                tf.zeros(variable.shape, variable.dtype)
                if gradient is None
                else tf.ensure_shape(tf.convert_to_tensor(gradient), variable.shape)
                for gradient, variable in zip(gradients, trainable, strict=True)
            ]
            if loss.has_gradient is None:
                return dense
            return [combine(tf.math.multiply_no_nan, g, loss.has_gradient) for g in dense]

        sums = clipped_sums(
            gradients_of,
            examples,
            self._trainable,
            clip=self._options.privacy.clip,
            most_examples=-(-self._options.reduction.batch_size // self._options.num_parts),
        )
        pairs = zip(sums, is_trained, strict=True)
        return outcome, [total if is_set else None for total, is_set in pairs], None

    def _empty_sums(self, flag: tf.Tensor, zero: tf.Tensor) -> list[Sum]:
        """Build the zero sums of a rank without examples, whose variables are updated like all."""
        specs = self._parts[False].structured_outputs[0]
        sums = [
            _no_rows(spec, zero) if isinstance(spec, tf.IndexedSlices) else _fill(spec, zero)
            for spec in specs[:-1]
        ]
        state_sums = [
            tf.fill(v.shape, tf.cast(zero, v.dtype if v.value.dtype.is_floating else tf.float32))
            for v in self._assigned
        ]
        metric_sums = [zero for _ in range(self.num_metric_sums)]
        return [*sums, *state_sums, tf.stack([zero, zero, zero, flag, zero, *metric_sums])]

    def _finish(self, sums: list[Sum], in_ring: bool) -> tf.Tensor:
        """Reduce the sums over the ring, then update the variables equally on all ranks."""
        with tf.control_dependencies(_flat(sums)):
            computed_at = tf.timestamp()
            if in_ring:
                self._computed_at.assign(computed_at)
        bucket_times: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
        if in_ring:
            num_trained, reduction = len(self._trained), self._options.reduction
            times = bucket_times if reduction.is_timed else None
            sums = add_over_ring(sums[:num_trained], sums[num_trained:], reduction, times)
            self._bucket_names = list(bucket_times)
        # All sums are reduced before any variable changes.
        with tf.control_dependencies(_flat(sums)):
            summed_at = tf.timestamp()
        with tf.control_dependencies([*_flat(sums), summed_at]):
            row = self._update(sums)
        with tf.control_dependencies([row]):
            of_buckets = [at - computed_at for span in bucket_times.values() for at in span]
            times = tf.stack([summed_at - computed_at, tf.timestamp() - summed_at, *of_buckets])
        return tf.concat([row, tf.cast(times, row.dtype)], 0)

    def _gradient_sum(self, variable: keras.Variable, gradient: Any) -> Sum:
        if isinstance(gradient, tf.IndexedSlices) and self._options.num_parts == 1:
            shape = tf.constant([*variable.shape], gradient.indices.dtype)
            return unique_rows(tf.IndexedSlices(gradient.values, gradient.indices, shape))
        # Sparse features and text layers give gradients of a shape that is unknown while tracing.
        return tf.ensure_shape(gradient, variable.shape)

    def _update_if_finite(self, reduced: list[Sum]) -> tf.Tensor:
        """Update the variables if the step's loss and gradients are finite.

        Returns:
            The row of the step's numbers, with the metrics' state from METRICS on, followed by the
            metrics' values and whether the gradients are finite.
        """
        *totals, numbers = reduced
        gradient_sums, state_sums = totals[: len(self._trained)], totals[len(self._trained) :]
        count, weight = numbers[EXAMPLES], numbers[LOSS_WEIGHT]

        def update() -> tf.Tensor:
            # The weight of a fully masked loss is 0; Keras then uses zero gradients.
            gradients = [combine(tf.math.divide_no_nan, total, weight) for total in gradient_sums]
            if self._options.privacy is not None:
                gradients = list(map(self._hidden, gradient_sums))
            if self._anchors:
                gradients = list(map(self._pulled, self._trained, gradients))
            gradients = clip(gradients, self._options, self._scale)
            with self._rate.applied() if self._rate is not None else contextlib.nullcontext():
                self._optimizer.apply(gradients, self._trained)
            for variable, gradient in zip(self._trained, gradients, strict=True):
                if isinstance(gradient, tf.IndexedSlices):
                    # Updating single rows switches a variable to a mode in which every read
                    # copies all of it.
                    tf.raw_ops.DisableCopyOnRead(resource=variable.value.handle)
            for variable, total in zip(self._assigned, state_sums, strict=True):
                _assign_from_sum(variable.value, total, count, numbers[CONTRIBUTORS])
            return tf.constant(True)

        are_finite = are_usable(gradient_sums, self._optimizer)
        is_usable = tf.math.is_finite(numbers[LOSS]) & (count > 0) & are_finite
        updated = tf.cond(is_usable, update, lambda: tf.constant(False))
        states: list[tf.Tensor] = []
        values: dict[str, tf.Tensor] = {}
        for metric, sums in split_sums(self._metrics, numbers[METRICS:]):
            states.append(metric.counted(sums, count))
            values |= metric.values(states[-1], count)
        self._metric_names = list(values)
        with tf.control_dependencies([updated]):
            row = [tf.reshape(tf.cast(v, tf.float32), [1]) for v in (*values.values(), are_finite)]
            return tf.concat([numbers[:METRICS], *states, *row], 0)

    def _hidden(self, total: tf.Tensor) -> tf.Tensor:
        """Compute the mean gradient of a variable with noise, from the sum of clipped ones."""
        privacy, shape = self._options.privacy, tuple(total.shape)
        assert privacy is not None
        deviation = privacy.noise * privacy.clip
        drawn = tf.numpy_function(lambda: noise(shape, deviation), [], tf.float64)
        # Not by the number of examples, which depends on the records.
        divisor = tf.cast(self._options.reduction.batch_size / self._scale, total.dtype)
        return (total + tf.cast(tf.ensure_shape(drawn, shape), total.dtype)) / divisor

    def _pulled(self, variable: keras.Variable, gradient: Sum) -> tf.Tensor:
        """Add the gradient of FedProx's term to that of a variable."""
        distance = variable.value - self._anchors[id(variable)]
        factor = tf.cast(self._options.proximal_mu * self._scale, distance.dtype)
        return tf.convert_to_tensor(gradient) + factor * distance

    @property
    def _is_scaling(self) -> bool:
        """Whether the optimizer unscales gradients; a user's optimizer may do so, too."""
        is_dynamic = isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer)
        return is_dynamic or self._optimizer.loss_scale_factor is not None

    @property
    def _scale(self) -> tf.Tensor:
        """The factor by which the optimizer expects the loss and the gradients to be scaled."""
        return tf.convert_to_tensor(self._optimizer.scale_loss(tf.constant(1.0)))


def inlined(function: Any, *arguments: Any) -> Any:
    """Add the ops of `function(*arguments)` to the graph that is being traced.

    A call is one node of a graph: its outputs are only ready when its last op is done. Copied ops
    are ready one by one. Tracing a large model takes seconds of Python, and copying its ops far
    less. So a function that several graphs need is traced once, called where it runs alone, and
    copied where other ops should run concurrently with it.

    Args:
        function: A `tf.types.experimental.ConcreteFunction`.
        *arguments: Structures of tensors that match the function's signature.

    Returns:
        The function's result, in tensors of the current graph.
    """
    inner = function.graph
    outer = tf.compat.v1.get_default_graph()
    captures = [outer.capture(value) for value in function.captured_inputs]
    inputs = [*tf.nest.flatten(arguments, expand_composites=True), *captures]
    feeds = {
        placeholder.name: tensor for placeholder, tensor in zip(inner.inputs, inputs, strict=True)
    }
    copied = tf.graph_util.import_graph_def(
        inner.as_graph_def(),
        input_map=feeds,
        return_elements=[output.name for output in inner.outputs],
        name="",
    )
    outputs = inner.structured_outputs
    return tf.nest.pack_sequence_as(outputs, copied, expand_composites=True)


def _fill(like: Any, value: tf.Tensor) -> tf.Tensor:
    return tf.fill(like.shape, tf.cast(value, like.dtype))


def _no_rows(like: tf.IndexedSlices, zero: tf.Tensor) -> tf.IndexedSlices:
    """Build a sparse sum without rows that TensorFlow cannot evaluate as a constant."""
    count = tf.cast(zero, tf.int32)
    values = tf.fill([count, *like.values.shape[1:]], tf.cast(zero, like.values.dtype))
    indices = tf.fill([count], tf.cast(zero, like.indices.dtype))
    # `like` belongs to another graph, so its shape cannot be used here.
    return tf.IndexedSlices(values, indices, tf.constant(tf.get_static_value(like.dense_shape)))


def _flat(sums: list[Sum]) -> list[tf.Tensor]:
    return list(tf.nest.flatten(sums, expand_composites=True))


def _salted(variable: keras.Variable, value: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """Add a salt to the state of a seed generator; return other values unchanged."""
    if not _is_seed(variable):
        return value
    return value + tf.stack([tf.cast(salt, value.dtype), tf.zeros((), value.dtype)])


def _is_seed(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a seed generator of Keras."""
    return bool(variable.name == "seed_generator_state")


def _to_sum(before: tf.Tensor, after: Any, count: tf.Tensor) -> tf.Tensor:
    """Compute a rank's summand: the value times `count`, or the increment of an integer."""
    after = tf.convert_to_tensor(after)
    if before.dtype.is_floating:
        return after * tf.cast(count, after.dtype)
    return tf.cast(tf.cast(after, tf.int64) - tf.cast(before, tf.int64), tf.float32)


def _assign_from_sum(
    variable: tf.Variable, total: tf.Tensor, count: tf.Tensor, contributors: tf.Tensor
) -> None:
    """Set a variable to the weighted mean over the ring, or advance an integer by the mean."""
    if variable.dtype.is_floating:
        variable.assign(total / tf.cast(count, total.dtype))
    else:
        variable.assign_add(tf.cast(tf.round(total / contributors), variable.dtype))
