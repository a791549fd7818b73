"""Keras models in files: examples of records with columns, and models of a zoo as files."""

from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.zoo import Overrides, load_spec
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.file_models import examples_of, write
    from edl_horovod.frameworks.keras.model import KerasModel
    from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS
    from tests.keras_files import file_model, made

X, Y = np.arange(6.0).reshape(3, 2), np.array([0, 2, 1])

CODE = """
import keras
from edl_horovod import ElasticDLSpec

class Line(ElasticDLSpec):
    def __init__(self, context=None, width=4):
        super().__init__(context)
        self._width = width

    def create_model(self):
        return keras.Sequential([keras.Input((self._width,)), keras.layers.Dense(2)])

    def create_loss(self, outputs, labels):
        return keras.ops.mean((outputs - labels) ** 2)

    def create_optimizer(self, lr=0.25):
        return keras.optimizers.SGD(lr, momentum=0.5)

class Unbuilt(Line):
    def create_model(self):
        return keras.Sequential([keras.layers.Dense(2)])

class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x

class Own(Line):
    def create_model(self):
        return keras.Sequential([keras.Input((4,)), Twice()])
"""


def of(mode=Mode.TRAINING, **columns):
    return examples_of(tf.data.Dataset.from_tensor_slices(columns), mode, label="digits")


def test_the_column_of_the_label_is_found_and_one_other_is_the_features():
    examples = list(of(x_train=X, y_train=Y).as_numpy_iterator())
    np.testing.assert_array_equal([x for x, _ in examples], X)
    assert [y for _, y in examples] == [0, 2, 1]


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
    with pytest.raises(UserCodeError, match="record: string"):
        examples_of(tf.data.Dataset.from_tensors(b"r"), Mode.TRAINING, label="digits")
    with pytest.raises(UserCodeError, match=r"text: string"):
        of(text=[b"a"], y=[1])
    with pytest.raises(UserCodeError, match=r"target.*a, b"):
        of(a=X, b=Y)


@pytest.fixture
def loaded(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(CODE)

    def load(symbol, **params):
        return load_spec(
            str(tmp_path / "zoo"),
            f"line.{symbol}",
            params=params,
            plain_models=PLAIN_MODELS,
            overrides=Overrides(has_own_dataset=True),
        )

    return load


def test_layers_and_their_optimizer_are_written(loaded, tmp_path):
    written = write(loaded("Line", width=3), tmp_path)
    assert written.spec == {"model_definition": "model.keras"}
    (note,) = written.left_out
    assert "the loss" in note
    model = made(file_model(tmp_path / "model.keras", compile_options={"loss": "mse"}))
    assert model.input_shape == (None, 3)
    assert float(model.optimizer.learning_rate) == 0.25
    assert float(model.optimizer.momentum) == 0.5
    again = made(file_model(tmp_path / "model.keras", compile_options={"loss": "mse"}))
    for first, second in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("symbol", "message"), [("Unbuilt", r"keras\.Input"), ("Own", "Received: .*Twice")]
)
def test_what_a_file_cannot_hold_is_told(loaded, symbol, message, tmp_path):
    with pytest.raises(UserCodeError, match=message):
        write(loaded(symbol), tmp_path)


if LATER:

    class NoConfig(keras.Model):
        def call(self, inputs):
            return inputs

        def get_config(self):
            raise NotImplementedError("get_config")


def test_a_model_that_keras_cannot_save_is_left_out_with_a_warning(tmp_path, caplog):
    spec = SimpleNamespace(create_model=NoConfig)
    loaded = SimpleNamespace(label="NoConfig", zoo=tmp_path, spec=spec)
    KerasModel(loaded, tf.TensorSpec((None, 4))).save(tmp_path)
    assert not (tmp_path / "model.keras").exists()
    assert "model.keras" in caplog.text
