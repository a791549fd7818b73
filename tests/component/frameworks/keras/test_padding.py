"""Batches padded to one of a few lengths: every axis that differs, with the values given."""

import pytest
import tensorflow as tf

from edl_horovod import padded
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.padding import pad_to_lengths
from edl_horovod.spec import padding_of

LENGTHS = [4, 8]


def only_batch(dataset, **options):
    made = padded(dataset, lengths=LENGTHS, **options)
    (batch,) = pad_to_lengths(made, padding_of(made))
    return batch


def examples():
    rows = tf.data.Dataset.range(1, 4)
    return rows.map(
        lambda n: (
            {"ids": tf.range(n), "words": tf.fill([n], "w"), "grid": tf.fill([n, 2 * n, 3], n)},
            n,
        )
    )


def test_every_axis_that_differs_is_padded_and_no_other():
    features, labels = only_batch(examples())
    assert features["ids"].numpy().tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0]]
    assert features["words"].numpy().tolist()[0] == [b"w", b"", b"", b""]
    assert features["grid"].shape == (3, 4, 8, 3)
    assert int(tf.reduce_sum(features["grid"])) == sum(n * n * 2 * n * 3 for n in (1, 2, 3))
    assert labels.numpy().tolist() == [1, 2, 3]


def test_the_values_are_those_that_are_given():
    minus = tf.constant(-1, tf.int64)
    values = ({"ids": minus, "words": "-", "grid": minus}, None)
    features, _ = only_batch(examples(), padding_values=values)
    assert features["ids"].numpy()[0].tolist() == [0, -1, -1, -1]
    assert features["words"].numpy()[0].tolist() == [b"w", b"-", b"-", b"-"]
    assert features["grid"].numpy()[2, 3, 7].tolist() == [-1, -1, -1]


def test_one_tensor_an_example_is_padded_with_one_value():
    rows = tf.data.Dataset.range(1, 3).map(tf.range)
    batch = only_batch(rows, padding_values=tf.constant(7, tf.int64))
    assert batch.numpy().tolist() == [[0, 7, 7, 7], [0, 1, 7, 7]]


@pytest.mark.parametrize("lengths", [[8, 4], [4, 4], [0, 4]])
def test_lengths_that_do_not_rise_are_refused(lengths):
    with pytest.raises(UserCodeError, match="must rise, from 1 on"):
        padded(examples(), lengths=lengths)
