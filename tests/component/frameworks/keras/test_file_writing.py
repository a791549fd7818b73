"""Keras models of a zoo that are written as the files of a spec."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.file_models import write
from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS
from edl_horovod.models.zoo import Overrides, load_spec
from tests.keras_files import file_model, made

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
    ("symbol", "message"),
    [("Unbuilt", r"keras\.Input"), ("Own", "Received: .*Twice")],
)
def test_what_a_file_cannot_hold_is_told(loaded, symbol, message, tmp_path):
    with pytest.raises(UserCodeError, match=message):
        write(loaded(symbol), tmp_path)
