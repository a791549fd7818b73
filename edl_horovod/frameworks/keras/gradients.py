"""A step's gradients: added over the parts of a batch, reduced over the ring, and clipped.

For `federated.privacy` they are clipped example by example, and then added up.

The ring reduces them in buckets, each as soon as it is ready (DESIGN D17).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.collectives import sum_compressed, sum_grouped
from edl_horovod.frameworks.keras.functional import num_examples, some_examples
from edl_horovod.frameworks.packing import in_buckets
from edl_horovod.frameworks.privacy import examples_at_once
from edl_horovod.frameworks.step_options import Reduction, StepOptions
from edl_horovod.models.calling import first_paragraph

Compute = Callable[[Any, list[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]

Sum: TypeAlias = tf.Tensor | tf.IndexedSlices
"""A rank's sum for a variable; for an embedding only the rows that its examples use."""


def add_over_parts(
    compute: Compute,
    compute_last: Compute,
    batch: Any,
    non_trainable: Sequence[tf.Tensor],
    *,
    num_parts: int,
    sum_specs: Sequence[Any],
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Split a batch into parts and add up their sums, with the memory of one part.

    Parts are not empty: a batch with few examples has fewer parts.

    Args:
        compute: Maps a part and the non-trainable values to sums over its examples and the new
            non-trainable values. The shapes are the same for every part.
        compute_last: The same for the last part, which runs outside of the loop over the others.
        batch: Tensors whose first dimension is the examples; at least one example.
        non_trainable: Values of the non-trainable variables; each part takes them from the
            previous one.
        num_parts: The maximum number of parts.
        sum_specs: Shapes and types of the sums.

    Returns:
        The sums over all examples, and the non-trainable values after the last part.
    """
    if num_parts == 1:
        return compute_last(batch, list(non_trainable))
    count = num_examples(batch)
    size = (count + num_parts - 1) // num_parts

    def part_at(start: tf.Tensor) -> Any:
        return some_examples(batch, start, tf.minimum(start + size, count))

    def add(start: tf.Tensor, sums: Any, state: Any) -> Any:
        part_sums, state = compute(part_at(start), state)
        return start + size, _add_pairwise(sums, part_sums), state

    zeros = [tf.zeros(spec.shape, spec.dtype) for spec in sum_specs]
    start, sums, state = tf.while_loop(
        lambda start, *_: start + size < count,
        add,
        (tf.constant(0), zeros, list(non_trainable)),
        parallel_iterations=1,
    )
    last_sums, state = compute_last(part_at(start), state)
    return _add_pairwise(sums, last_sums), state


def clipped_sums(
    gradients_of: Callable[[Any, tf.Tensor], Sequence[tf.Tensor]],
    examples: Any,
    variables: Sequence[keras.Variable],
    *,
    clip: float,
    most_examples: int,
) -> list[tf.Tensor]:
    """Clip the gradient of each example to a global norm, and add these gradients up.

    Args:
        gradients_of: Returns the gradients for a batch of one example, whose index comes second;
            nothing else that it uses depends on the examples.
        examples: Features and labels; at least one example.
        variables: The variables of the gradients, in their order.
        clip: The largest norm.
        most_examples: The largest number of examples.

    Raises:
        UserCodeError: TensorFlow cannot compute the gradients of single examples.
    """
    parts = tf.nest.flatten(examples)
    tensors = [part for part in parts if part is not None]
    if not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
        raise UserCodeError(
            "federated.privacy needs features and labels that are dense tensors.",
            received=", ".join(type(tensor).__name__ for tensor in tensors),
            hint="Make them dense in create_dataset, for instance by tf.sparse.to_dense or"
            " to_tensor().",
        )

    def clipped(example: list[tf.Tensor]) -> list[tf.Tensor]:
        *values, index = example
        rest = iter(values)
        batch = [None if part is None else next(rest)[tf.newaxis] for part in parts]
        gradients = gradients_of(tf.nest.pack_sequence_as(examples, batch), index)
        # Not by tf.clip_by_global_norm, which has an op without a vectorised form.
        squares = [tf.reduce_sum(tf.square(tf.cast(g, tf.float32))) for g in gradients]
        factor = clip / tf.maximum(tf.sqrt(tf.add_n(squares)), clip)
        return [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]

    def summed(part: Any, _: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        # Slower loops stand for ops without a vectorised form, such as those of random numbers.
        of_examples = tf.vectorized_map(clipped, part, fallback_to_while_loop=True, warn=False)
        return [tf.reduce_sum(gradients, 0) for gradients in of_examples], []

    specs = [tf.TensorSpec(variable.shape, variable.value.dtype) for variable in variables]
    at_once = examples_at_once(sum(s.shape.num_elements() * s.dtype.size for s in specs))
    numbered = [*tensors, tf.range(num_examples(examples))]
    num_parts = -(-most_examples // at_once)
    try:
        return add_over_parts(summed, summed, numbered, [], num_parts=num_parts, sum_specs=specs)[0]
    except (TypeError, ValueError, NotImplementedError, tf.errors.OpError) as error:
        raise UserCodeError(
            "TensorFlow cannot compute the gradients of single examples by tf.vectorized_map, which"
            " federated.privacy needs.",
            received=first_paragraph(error),
            hint="Replace the layer or the part of the loss that the message names.",
        ) from error


def add_over_ring(
    gradients: Sequence[Sum],
    others: Sequence[tf.Tensor],
    reduction: Reduction,
    times: dict[str, tuple[tf.Tensor, tf.Tensor]] | None = None,
) -> list[Sum]:
    """Reduce this rank's sums over the ring.

    Args:
        gradients: Sums in the order of the variables, with the same kinds, shapes (except for the
            number of rows) and types on all ranks. They are sent in reverse order.
        others: Sums that are sent with the last bucket, with the same shapes and types on all
            ranks.
        reduction: The buckets and the compression.
        times: Gets the begin and the end of each bucket by its name, in seconds since the epoch;
            None if they are not measured.

    Returns:
        The totals of `gradients` and `others`, bit for bit the same on all ranks.
    """
    reduced: list[Sum] = [*others, *gradients]
    sparse = [i for i, value in enumerate(reduced) if isinstance(value, tf.IndexedSlices)]
    sparse_totals = _reduce_sparse([reduced[i] for i in sparse], reduction.name)
    for index, total in zip(sparse, sparse_totals, strict=True):
        reduced[index] = total
    dense = [i for i in range(len(reduced)) if i not in sparse]

    def is_compressed(index: int) -> bool:
        is_gradient = index >= len(others) and reduced[index].dtype == tf.float32
        return is_gradient and reduction.compression != "none"

    for compressed in (True, False):
        # `others` are sent with the last bucket of the uncompressed gradients.
        indices = [i for i in dense if is_compressed(i) == compressed]
        sizes = [reduced[i].shape.num_elements() * reduced[i].dtype.size for i in indices]
        types = [reduced[i].dtype for i in indices]
        name = f"{reduction.name}.{reduction.compression}" if compressed else reduction.name
        for bucket in in_buckets(sizes, types, reduction.bucket_bytes, name):
            # A tag makes the inputs of each bucket unique: TensorFlow merges ops with equal inputs,
            # so it would send two buckets of equal zeros only once, unlike the other ranks.
            tag = tf.fill([1], tf.cast(bucket.places[0], reduced[indices[bucket.places[0]]].dtype))
            tensors = [tag, *(reduced[indices[i]] for i in bucket.places)]
            begin = _time_after(tensors) if times is not None else None
            tag, *sums = (
                sum_compressed(tensors, bucket.name, reduction.compression, reduction.batch_size)
                if compressed
                else sum_grouped(tensors, bucket.name)
            )
            if times is not None:
                times[bucket.name] = begin, _time_after(sums)
            for i, total in zip(bucket.places, sums, strict=True):
                reduced[indices[i]] = total
    return [*reduced[len(others) :], *reduced[: len(others)]]


def _time_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The time at which tensors are computed, in seconds since the epoch.

    Not by `tf.timestamp`: TensorFlow runs ops with a state in the order of their creation, so the
    begin of each bucket would wait for the end of the one before.
    """
    # What depends on a tensor is not taken for a constant.
    first = tf.reshape(tensors[-1], [-1])[:1]
    with tf.control_dependencies(tensors):
        now = tf.numpy_function(
            lambda _: np.float64(time.time()), [first], tf.float64, stateful=False
        )
    return tf.ensure_shape(now, ())


def are_usable(gradients: Sequence[Sum], optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Whether an optimizer can apply the gradients, that is, whether all are finite.

    Always true for an optimizer that scales the loss, because it skips non-finite steps itself.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not gradients:
        return tf.constant(True)
    values = [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
    ]
    # A sum is faster than a test of each element, and a sum of finite values rarely overflows.
    total = tf.add_n([tf.cast(tf.reduce_sum(value), tf.float32) for value in values])
    # Clipping by value turns infinite elements into finite ones.
    is_bad = tf.math.is_nan if optimizer.clipvalue else lambda x: ~tf.math.is_finite(x)
    return tf.cond(
        tf.math.is_finite(total),
        lambda: tf.constant(True),
        lambda: ~tf.reduce_any([tf.reduce_any(is_bad(value)) for value in values]),
    )


def clip(gradients: Sequence[Sum], options: StepOptions, scale: tf.Tensor | float) -> list[Sum]:
    """Clip the mean gradients of a step. All ranks clip equal gradients, so they stay equal.

    Args:
        gradients: Gradients after the reduction; non-finite after an overflow of float16. Each row
            occurs at most once in an `IndexedSlices`; missing rows are 0.
        options: The limits.
        scale: The factor by which the loss, and so the gradients, are scaled.
    """
    clipped = list(gradients)
    if options.clip_value:
        limit = options.clip_value * scale
        clipped = [combine(_clip_finite, gradient, limit) for gradient in clipped]
    if options.clip_norm:
        clipped = tf.clip_by_global_norm(clipped, options.clip_norm * scale)[0]
    return clipped


def combine(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], value: Sum, operand: tf.Tensor | float
) -> Sum:
    """Apply a function to the values of a dense or sparse sum, and an operand cast to their type.

    Args:
        function: Returns a tensor of the shape and type of its first argument.
        value: The sum.
        operand: A scalar.
    """
    if isinstance(value, tf.IndexedSlices):
        values = combine(function, value.values, operand)
        return tf.IndexedSlices(values, value.indices, value.dense_shape)
    return function(value, tf.cast(operand, value.dtype))


def unique_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sum the values of each row, so that every row occurs once."""
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _clip_finite(values: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    # Non-finite values must stay non-finite: loss scaling looks for them.
    return tf.where(tf.math.is_finite(values), tf.clip_by_value(values, -limit, limit), values)


def _add_pairwise(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _reduce_sparse(sums: Sequence[tf.IndexedSlices], name: str) -> list[tf.IndexedSlices]:
    """Reduce sparse sums: as rows if these are fewer bytes than the dense array, else densely.

    The number of rows is known before the backward pass, so summing it takes no extra time.
    """
    if not sums:
        return []
    counts = tf.stack([tf.shape(slices.indices, tf.int64)[0] for slices in sums])
    (totals,) = sum_grouped([counts], f"{name}.rows")

    def reduced(number: int, local: tf.IndexedSlices, num_rows: tf.Tensor) -> tf.IndexedSlices:
        row_bytes = local.values.dtype.size * local.values.shape[1:].num_elements()
        sparse_bytes = num_rows * (row_bytes + local.indices.dtype.size)
        dense_bytes = tf.cast(local.dense_shape[0], tf.int64) * row_bytes
        return tf.cond(
            sparse_bytes < dense_bytes,
            lambda: _gather_rows(local, f"{name}.rows.{number}"),
            lambda: _sum_dense(local, f"{name}.rows.{number}"),
        )

    return list(map(reduced, range(len(sums)), sums, tf.unstack(totals)))


def _gather_rows(local: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    """Gather the rows of all ranks and add them in rank order."""
    values, indices = (
        hvd.allgather(value, name=f"{name}.{part}", ignore_name_scope=True)
        for value, part in ((local.values, "values"), (local.indices, "indices"))
    )
    values.set_shape(local.values.shape)
    indices.set_shape(local.indices.shape)
    return unique_rows(tf.IndexedSlices(values, indices, local.dense_shape))


def _sum_dense(local: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    (values,) = sum_grouped([tf.convert_to_tensor(local)], name)
    indices = tf.range(tf.cast(local.dense_shape[0], local.indices.dtype))
    return tf.IndexedSlices(values, indices, local.dense_shape)
