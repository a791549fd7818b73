"""Examples of records with columns, for models in files."""

import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.examples import examples_of
from edl_horovod.spec import Mode

X, Y = np.arange(6.0).reshape(3, 2), np.array([0, 2, 1])


def of(mode=Mode.TRAINING, **columns):
    return examples_of(tf.data.Dataset.from_tensor_slices(columns), mode, label="digits")


def test_the_column_of_the_label_is_found_and_one_other_is_the_features():
    found = list(of(x_train=X, y_train=Y).as_numpy_iterator())
    np.testing.assert_array_equal([x for x, _ in found], X)
    assert [y for _, y in found] == [0, 2, 1]


def test_several_columns_are_features_by_their_names():
    features, label = next(of(a=X, b=X, label=Y).as_numpy_iterator())
    assert sorted(features) == ["a", "b"]
    assert label == 0


@pytest.mark.parametrize("columns", [{"x": X}, {"x": X, "y": Y}])
def test_a_prediction_has_features_alone(columns):
    first = next(of(Mode.PREDICTION, **columns).as_numpy_iterator())
    np.testing.assert_array_equal(first, X[0])


def test_examples_of_the_users_own_stay():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    assert examples_of(dataset, Mode.TRAINING, label="digits") is dataset


def test_records_without_columns_of_numbers_are_told():
    with pytest.raises(UserCodeError, match=r"not columns of numbers.*record: string.*input_fn"):
        examples_of(tf.data.Dataset.from_tensors(b"r"), Mode.TRAINING, label="digits")
    with pytest.raises(UserCodeError, match=r"text: string"):
        of(text=[b"a"], y=[1])
    with pytest.raises(UserCodeError, match=r"one column called y, label or target.*a, b"):
        of(a=X, b=Y)
