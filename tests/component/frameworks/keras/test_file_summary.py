"""What the files of a model say of it, told without making anything of them."""

import json

import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.spec_zoo import LayerSummary
from tests.later import LATER

if LATER:
    import keras

    from edl_horovod.frameworks.keras.file_models import summarize
    from tests.keras_files import (
        arrays,
        dense,
        file_model,
        layer,
        sequential,
        write_h5,
        write_weights,
    )

    WEIGHTS = {"dense_1": arrays(1, kernel=(4, 3), bias=(3,)), "drop": {}}
    CONFIG = sequential(
        dense("dense_1", 3, batch_input_shape=[None, 4]), layer("Dropout", "drop", rate=0.5)
    )


@pytest.fixture(autouse=True)
def nothing_is_made(monkeypatch, request):
    """No layer may be built while a file is described."""
    if "trained" in request.fixturenames:
        request.getfixturevalue("trained")

    def build(*_, **__):
        raise AssertionError("a layer was built")

    for kind, method in ((keras.layers.Dense, "build"), (keras.layers.Lambda, "__init__")):
        monkeypatch.setattr(kind, method, build)


@pytest.fixture
def trained(tmp_path):
    """A model that today's Keras wrote."""
    model = keras.Sequential(
        [
            keras.Input((4,), name="in"),
            keras.layers.Dense(3, name="first"),
            keras.layers.Dropout(0.5, name="drop"),
            keras.layers.Dense(2, name="second"),
        ]
    )
    model.compile("adam", keras.losses.MeanSquaredError())
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "model.h5")
    return tmp_path


def test_a_model_of_keras_2(tmp_path):
    summary = summarize(file_model(write_h5(tmp_path / "model.h5", CONFIG, WEIGHTS)))
    assert summary.kind == "HDF5 of Keras 2.2.4"
    assert summary.layers == (
        LayerSummary(name="dense_1", kind="Dense", shape="(4, 3), (3,)", num_parameters=15),
        LayerSummary(name="drop", kind="Dropout", shape="", num_parameters=0),
    )
    assert (summary.optimizer, summary.loss, summary.unsafe) == ("SGD", "mse", ())


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_a_model_of_today(trained, name):
    summary = summarize(file_model(trained / name))
    assert summary.kind.endswith(f"of Keras {keras.__version__}")
    counts = {layer.name: layer.num_parameters for layer in summary.layers}
    assert counts == {"in": 0, "first": 15, "drop": 0, "second": 8}
    assert summary.layers[0].shape == "(None, 4)"
    assert summary.optimizer.lower() == "adam"
    assert summary.loss == "MeanSquaredError"


def test_an_architecture_with_and_without_weights(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**CONFIG, "keras_version": "2.2.4"}))
    options = {"optimizer": {"value": "SGD"}, "loss": "mae"}
    summary = summarize(file_model(architecture=path, compile_options=options))
    assert [part.num_parameters for part in summary.layers] == [None, None]
    assert (summary.optimizer, summary.loss) == ("SGD", "mae")
    weights = write_weights(tmp_path / "weights.h5", WEIGHTS)
    summary = summarize(file_model(architecture=path, weights=weights))
    assert [part.num_parameters for part in summary.layers] == [15, 0]


def test_what_is_unsafe_is_named_with_its_place(tmp_path):
    sly = layer("Lambda", "scale", function=["code", None, None], function_type="lambda")
    config = sequential(dense("dense_1", 3, batch_input_shape=[None, 4]), sly)
    summary = summarize(file_model(write_h5(tmp_path / "model.h5", config, WEIGHTS)))
    assert summary.unsafe == ("Lambda layer 'scale' of model.h5",)


def test_a_file_that_is_none_is_an_error(tmp_path):
    (tmp_path / "model.h5").write_text("text")
    with pytest.raises(UserCodeError, match="HDF5"):
        summarize(file_model(tmp_path / "model.h5"))
