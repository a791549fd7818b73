"""Gradients of a step: clipped, checked and added; rows of embeddings; and copied functions."""

import numpy as np
import pytest

from edl_horovod.frameworks.step_options import StepOptions
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.gradients import add_over_parts, are_usable, clip, unique_rows
    from edl_horovod.frameworks.keras.graph import inlined

    GRADIENTS = [tf.constant([3.0, -4.0]), tf.constant([[12.0]])]  # Of length 13.


@pytest.mark.parametrize(
    ("options", "scale", "expected", "rtol"),
    [
        (StepOptions(clip_norm=6.5), 1.0, [[1.5, -2.0], [[6.0]]], 1e-6),
        (StepOptions(clip_norm=6.5), 8.0, [[12.0, -16.0], [[48.0]]], 1e-6),
        (StepOptions(clip_norm=100.0), 1.0, [[3.0, -4.0], [[12.0]]], 0),
        (StepOptions(clip_value=3.5), 1.0, [[3.0, -3.5], [[3.5]]], 0),
    ],
    ids=["a long gradient", "a scaled one", "a short one stays", "values are cut one by one"],
)
def test_clipped_gradients(options, scale, expected, rtol):
    clipped = clip([gradient * scale for gradient in GRADIENTS], options, scale)
    for ours, values in zip(clipped, expected, strict=True):
        np.testing.assert_allclose(ours, values, rtol)


def test_what_float16_could_not_hold_stays_visible():
    broken = [tf.constant([float("inf"), float("nan"), 9.0])]
    (clipped,) = clip(broken, StepOptions(clip_value=1.0), 2.0)
    assert not np.isfinite(clipped.numpy()[:2]).any()
    assert clipped.numpy()[2] == 2.0


@pytest.mark.long(after=1)
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 20])
def test_parts_add_up_to_the_whole_and_none_is_empty(count, num_parts):
    def compute(part, non_trainable):
        tf.debugging.assert_positive(tf.shape(part["x"])[0])
        return [tf.reduce_sum(part["x"], 0)], [non_trainable[0] + tf.reduce_max(part["x"])]

    x = tf.reshape(tf.range(1.0, 2.0 * count + 1), [count, 2])
    traced = tf.function(
        lambda x: add_over_parts(
            compute,
            compute,
            {"x": x},
            [tf.constant(0.5)],
            num_parts=num_parts,
            sum_specs=[tf.TensorSpec((2,))],
        )
    ).get_concrete_function(tf.TensorSpec((None, 2)))
    (total,), (moved,) = traced(x)
    np.testing.assert_allclose(total, np.sum(x.numpy(), 0))
    size = -(-count // num_parts)
    expected = 0.5 + sum(x.numpy()[i : i + size].max() for i in range(0, count, size))
    np.testing.assert_allclose(moved, expected)


@pytest.mark.parametrize(
    ("values", "settings", "is_usable"),
    [
        ([3e38, 3e38], {}, True),
        ([1.0, np.inf], {}, False),
        ([1.0, np.nan], {}, False),
        # As in `fit`, the optimizer makes a large number of it.
        ([1.0, np.inf], {"clipvalue": 0.5}, True),
        ([1.0, np.nan], {"clipvalue": 0.5}, False),
        ([1.0, np.inf], {"clipnorm": 0.5}, False),
    ],
)
def test_gradients_are_usable_where_a_step_by_them_is_finite(values, settings, is_usable):
    variable, rows = keras.Variable([0.0, 0.0]), tf.IndexedSlices(tf.constant(values), [0, 1])
    optimizer = keras.optimizers.SGD(1.0, **settings)
    assert bool(are_usable([rows], optimizer)) == is_usable
    assert bool(are_usable([tf.ones(3), tf.constant(values)], optimizer)) == is_usable
    optimizer.apply([tf.constant(values)], [variable])
    assert np.isfinite(variable.numpy()).all() == is_usable


def test_rows_that_are_there_twice_are_added():
    values = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    rows = unique_rows(tf.IndexedSlices(values, tf.constant([7, 2, 7]), tf.constant([9, 2])))
    assert rows.indices.numpy().tolist() == [7, 2]
    np.testing.assert_array_equal(rows.values, [[6.0, 8.0], [3.0, 4.0]])
    none = unique_rows(tf.IndexedSlices(values[:0], tf.constant([], tf.int32), tf.constant([9, 2])))
    assert none.values.shape == (0, 2)


def test_a_copied_function_does_what_a_called_one_does():
    variable = tf.Variable([1.0, 2.0])

    def double(batch, number):
        tf.debugging.assert_positive(batch["x"])
        rows = tf.IndexedSlices(batch["x"], tf.constant([0, 1]), tf.constant([2]))
        return [batch["x"] * variable, rows], tf.cond(
            number > 1, lambda: number * 2, lambda: number
        )

    arguments = {"x": tf.constant([3.0, 4.0])}, tf.constant(5.0)
    traced = tf.function(double, autograph=False).get_concrete_function(*arguments)
    copied = tf.function(lambda *inputs: inlined(traced, *inputs), autograph=False)
    for ours, expected in zip(
        tf.nest.flatten(copied(*arguments), expand_composites=True),
        tf.nest.flatten(traced(*arguments), expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, expected)
    variable.assign([10.0, 10.0])
    assert copied(*arguments)[0][0].numpy().tolist() == [30.0, 40.0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        copied({"x": tf.constant([-3.0, 4.0])}, tf.constant(5.0))
