"""Buckets hold each gradient once, from the last to the first, and rows are added where doubled."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.frameworks.keras.inlined import inlined
from edl_horovod.frameworks.keras.reduction import in_buckets, unique_rows

KINDS = st.tuples(st.integers(0, 40), st.sampled_from([tf.float32, tf.float16, tf.float64]))


@given(st.lists(KINDS, max_size=12), st.integers(1, 200))
def test_buckets_hold_all_in_reverse_and_are_no_larger_than_asked_for(kinds, most_bytes):
    specs = [tf.TensorSpec((size,), dtype) for size, dtype in kinds]
    buckets = in_buckets(specs, most_bytes, "name")
    assert [place for bucket in buckets for place in bucket.places] == [*range(len(specs))][::-1]
    assert [bucket.name for bucket in buckets] == [f"name.{n}" for n in range(len(buckets))]
    for bucket in buckets:
        held = [specs[place] for place in bucket.places]
        assert len({spec.dtype for spec in held}) == 1
        size = sum(spec.shape[0] * spec.dtype.size for spec in held)
        assert size <= most_bytes or len(held) == 1


def test_a_bucket_is_not_closed_before_it_is_full():
    specs = [tf.TensorSpec((10,), tf.float32)] * 5
    assert [bucket.places for bucket in in_buckets(specs, 80, "")] == [(4, 3), (2, 1), (0,)]


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
