"""Optimizer, loss and metrics of a model in files: old arguments, and the spec's options."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.modules import CustomObject, load_module
from edl_horovod.models.parts import overrides_method
from tests.later import LATER

if LATER:
    import keras

    from edl_horovod.frameworks.keras.file_models import spec_of
    from tests.keras_files import COMPILED, arrays, dense, file_model, made, sequential, write_h5

    WEIGHTS = {"dense_1": arrays(1, kernel=(4, 3), bias=(3,))}
    CONFIG = sequential(dense("dense_1", 3, batch_input_shape=[None, 4]))
MINE = """
import keras

def my_loss(labels, outputs):
    return keras.ops.mean(keras.ops.abs(labels - outputs))

class MyOptimizer(keras.optimizers.SGD):
    pass

class Scaled(keras.losses.Loss):
    def __init__(self, by=1.0, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def call(self, labels, outputs):
        return self.by * keras.ops.mean(keras.ops.abs(labels - outputs), axis=-1)
"""


def compiled(tmp_path, optimizer=None, settings=None, **fields):
    fields_of_file = {**COMPILED, **fields}
    if optimizer:
        fields_of_file["optimizer_config"] = {"class_name": optimizer, "config": settings}
    return write_h5(tmp_path / "model.h5", CONFIG, WEIGHTS, compiled=fields_of_file)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        (
            "SGD",
            {"lr": 0.25, "momentum": 0.5, "decay": 0.0, "nesterov": True},
            {"learning_rate": 0.25, "momentum": 0.5, "nesterov": True},
        ),
        (
            "RMSprop",
            {"lr": 0.25, "rho": 0.8, "decay": 0.0, "epsilon": None},
            {"learning_rate": 0.25, "rho": 0.8, "epsilon": 1e-7},
        ),
        (
            "Adam",
            {"lr": 0.5, "beta_1": 0.8, "beta_2": 0.9, "decay": 0.0, "epsilon": 1e-8},
            {"learning_rate": 0.5, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-8},
        ),
        ("Adadelta", {"lr": 1.0, "rho": 0.95, "decay": 0.0}, {"learning_rate": 1.0}),
        ("Adagrad", {"lr": 0.5, "epsilon": None}, {"initial_accumulator_value": 0.0}),
        ("Nadam", {"lr": 0.5, "schedule_decay": 0.004}, {"learning_rate": 0.5}),
        (
            "Custom>Adam",
            {"learning_rate": 0.5, "is_legacy_optimizer": False, "jit_compile": True},
            {"learning_rate": 0.5},
        ),
    ],
)
def test_old_arguments_of_optimizers_become_todays(tmp_path, name, settings, expected):
    optimizer = made(file_model(compiled(tmp_path, name, settings))).optimizer
    assert type(optimizer).__name__ == name.removeprefix("Custom>")
    config = optimizer.get_config()
    assert {key: config[key] for key in expected} == pytest.approx(expected)


def test_a_decay_is_the_schedule_that_it_was(tmp_path):
    path = compiled(tmp_path, "SGD", {"lr": 0.5, "momentum": 0.0, "decay": 0.1, "nesterov": False})
    schedule = made(file_model(path)).optimizer._learning_rate
    for step in (0, 1, 10):
        assert float(schedule(step)) == pytest.approx(0.5 / (1 + 0.1 * step))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("TFOptimizer", {}, "optimizer 'TFOptimizer'"),
        ("SGD", {"lr": 0.1, "gamma": 2}, "SGD .*'gamma'.*gamma=2"),
        ("SGD", {"lr": 0.1, "learning_rate": 0.2}, "lr=0.1, learning_rate=0.2"),
    ],
)
def test_an_optimizer_that_keras_lacks_is_refused(tmp_path, name, settings, says):
    with pytest.raises(UserCodeError, match=says):
        made(file_model(compiled(tmp_path, name, settings)))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mean_squared_error", 5.0),
        ("logcosh", None),
        ({"class_name": "MeanSquaredError", "config": {"reduction": "auto", "name": "m"}}, 5.0),
        ({"class_name": "LossFunctionWrapper", "config": {"fn": "mean_squared_error"}}, 5.0),
    ],
)
def test_losses_of_the_file(tmp_path, loss, expected):
    model = made(file_model(compiled(tmp_path, loss=loss)))
    value = model.compute_loss(None, np.zeros((1, 2)), np.array([[1.0, 3.0]]), training=False)
    assert float(value) == pytest.approx(expected or 1.3715, rel=1e-3)


def test_metrics_of_the_file_keep_their_names(tmp_path):
    wrapped = {"name": "acc", "dtype": "float32", "fn": "sparse_categorical_accuracy"}
    metrics = [["mae", {"class_name": "MeanMetricWrapper", "config": wrapped}]]
    model = made(
        file_model(compiled(tmp_path, loss="sparse_categorical_crossentropy", metrics=metrics))
    )
    x, y = np.ones((4, 4), np.float32), np.zeros((4, 1), np.int32)
    assert {"loss", "acc"} < model.evaluate(x, y, return_dict=True, verbose=0).keys()


def test_options_of_the_spec_take_the_place_of_the_files(tmp_path):
    options = {
        "optimizer": {"value": "tf.keras.optimizers.SGD", "args": {"lr": 0.5, "momentum": 0.25}},
        "loss": "MeanAbsoluteError",
        "metrics": ["mae", {"value": "MeanSquaredError", "args": {"name": "squares"}}],
    }
    model = made(file_model(compiled(tmp_path), compile_options=options))
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert model.optimizer.get_config()["momentum"] == 0.25
    x, y = np.ones((4, 4), np.float32), np.zeros((4, 3), np.float32)
    metrics = model.evaluate(x, y, return_dict=True, verbose=0)
    assert metrics["loss"] == pytest.approx(metrics["mae"], rel=1e-5)
    assert "squares" in metrics


def test_a_model_without_a_loss_takes_the_options(tmp_path):
    path = write_h5(tmp_path / "model.h5", CONFIG, WEIGHTS, compiled=None)
    options = {"optimizer": "adadelta", "loss": "categorical_crossentropy", "metrics": "accuracy"}
    model = made(file_model(path, compile_options=options))
    assert isinstance(model.optimizer, keras.optimizers.Adadelta)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "adamm", "loss": "mse"}, "no optimizer 'adamm'.*Did you mean 'Adam'"),
        ({"optimizer": "sgd", "loss": "mean_square_error"}, "Did you mean 'mean_squared_error'"),
        ({"optimizer": "sgd", "loss": "mse", "metrics": ["accuracyy"]}, "no metrics 'accuracyy'"),
        ({"optimiser": "sgd", "loss": "mse"}, "optimiser=.*Did you mean 'optimizer'"),
        ({"optimizer": {"name": "sgd"}, "loss": "mse"}, "a name, or an object with value"),
        ({"optimizer": {"value": "sgd", "arg": {}}, "loss": "mse"}, "Did you mean 'args'"),
        ({"optimizer": {"value": "sgd", "args": {"rate": 1}}, "loss": "mse"}, "'rate'"),
    ],
)
def test_an_option_that_names_nothing_is_an_error(tmp_path, options, says):
    path = write_h5(tmp_path / "model.h5", CONFIG, WEIGHTS, compiled=None)
    with pytest.raises(UserCodeError, match=says):
        made(file_model(path, compile_options=options))


def test_what_nobody_gives_is_asked_for_where_it_is_needed(tmp_path):
    path = write_h5(tmp_path / "model.h5", CONFIG, WEIGHTS, compiled=None)
    spec = spec_of(file_model(path))()
    with pytest.raises(UserCodeError, match="no optimizer"):
        spec.create_optimizer()
    with pytest.raises(UserCodeError, match="no loss"):
        spec.create_loss()
    kind = spec_of(file_model(path, compile_options={"optimizer": "sgd"}))
    assert not overrides_method(kind, "create_optimizer")
    assert overrides_method(kind, "create_loss")


def test_what_the_options_replace_need_not_be_known(tmp_path):
    lost = {"class_name": "function", "module": "theirs", "config": "their_loss"}
    path = compiled(tmp_path, loss={**lost, "registered_name": "their_loss"})
    with pytest.raises(UserCodeError, match=r"\.their_loss"):
        made(file_model(path))
    made(file_model(path, compile_options={"loss": "mse"}))


def test_a_loss_of_the_users_in_the_file_and_among_the_options(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    path = compiled(tmp_path, loss="my_loss")
    with pytest.raises(UserCodeError, match="'my_loss'"):
        made(file_model(path))
    brought = CustomObject(key="my_loss", value="my_loss", path=mine)
    with pytest.raises(UserCodeError, match="trust=model"):
        made(file_model(path, custom_objects=(brought,)))
    model = made(file_model(path, custom_objects=(brought,), is_trusted=True))
    x, y = np.ones((4, 4), np.float32), np.zeros((4, 3), np.float32)
    expected = np.abs(np.asarray(model(x))).mean()
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)

    options = {
        "optimizer": {"value": "MyOptimizer", "path": str(mine), "args": {"learning_rate": 0.5}},
        "loss": {"value": "Scaled", "path": str(mine), "args": {"by": 2.0}},
    }
    model = made(file_model(path, compile_options=options, is_trusted=True))
    assert type(model.optimizer).__name__ == "MyOptimizer"
    assert model.evaluate(x, y, verbose=0) == pytest.approx(2 * expected, rel=1e-5)


def test_a_file_of_the_zoo_needs_no_trust(tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "mine.py").write_text(MINE)
    load_module(zoo / "mine.py", zoo=zoo)
    path = compiled(tmp_path, loss="my_loss")
    brought = CustomObject(key="my_loss", value="my_loss", path=zoo / "mine.py")
    made(file_model(path, custom_objects=(brought,)))
    wrong = CustomObject(key="my_loss", value="my_los", path=zoo / "mine.py")
    with pytest.raises(UserCodeError, match="'my_los'"):
        made(file_model(path, custom_objects=(wrong,)))
