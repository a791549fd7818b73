"""Rows are added where doubled, and a copied function does what a called one does."""

import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.graph import inlined
from edl_horovod.frameworks.keras.reduction import unique_rows


def test_rows_that_are_there_twice_are_added():
    values = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = unique_rows(tf.IndexedSlices(values, tf.constant([7, 2, 7]), tf.constant([9, 2])))
    assert found.indices.numpy().tolist() == [7, 2]
    np.testing.assert_array_equal(found.values, [[6.0, 8.0], [3.0, 4.0]])
    none = unique_rows(tf.IndexedSlices(values[:0], tf.constant([], tf.int32), tf.constant([9, 2])))
    assert none.values.shape == (0, 2)


def test_a_copied_function_does_what_a_called_one_does():
    variable = tf.Variable([1.0, 2.0])

    def double(batch, more):
        tf.debugging.assert_positive(batch["x"])
        rows = tf.IndexedSlices(batch["x"], tf.constant([0, 1]), tf.constant([2]))
        return [batch["x"] * variable, rows], tf.cond(more > 1, lambda: more * 2, lambda: more)

    arguments = {"x": tf.constant([3.0, 4.0])}, tf.constant(5.0)
    traced = tf.function(double, autograph=False).get_concrete_function(*arguments)
    copied = tf.function(lambda *given: inlined(traced, *given), autograph=False)
    for ours, theirs in zip(
        tf.nest.flatten(copied(*arguments), expand_composites=True),
        tf.nest.flatten(traced(*arguments), expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    variable.assign([10.0, 10.0])
    assert copied(*arguments)[0][0].numpy().tolist() == [30.0, 40.0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        copied({"x": tf.constant([-3.0, 4.0])}, tf.constant(5.0))
