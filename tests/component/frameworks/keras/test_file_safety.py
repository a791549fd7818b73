"""Malicious models of each kind: nothing of them runs, and each refusal says what was found."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER

if LATER:
    import h5py
    import keras

    from edl_horovod.frameworks.keras.file_models import spec_of
    from tests.keras_files import (
        COMPILED,
        arrays,
        dense,
        file_model,
        layer,
        made,
        sequential,
        write_h5,
    )

    WEIGHTS = {"dense_1": arrays(1, kernel=(4, 3), bias=(3,))}
    FIRST = dense("dense_1", 3, batch_input_shape=[None, 4])
MARKER = "ran.txt"


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that code of a model would write; it must not be there in the end."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / MARKER
    assert not (tmp_path / MARKER).exists()


def code():
    """A function as the bytes that Keras keeps of it, which would write the marker."""
    function = lambda x: [open(MARKER, "w").close(), x][1]  # noqa: E731
    return keras.layers.Lambda(function).get_config()["function"]["config"]["code"]


def lambda_of_keras_2(name="scale"):
    function = [code(), None, None]
    return layer(
        "Lambda", name, function=function, function_type="lambda", output_shape=None, arguments={}
    )


def nested(inner_layer, how):
    if how == "plain":
        return sequential(FIRST, inner_layer)
    if how in ("TimeDistributed", "Bidirectional"):
        return sequential(FIRST, layer(how, "wrapper", layer=inner_layer))
    inner = sequential(FIRST, inner_layer)
    if how == "model":
        return sequential(inner)
    node = [[["a", 0, 0, {}]]]
    start = layer("InputLayer", "a", batch_input_shape=[None, 4], dtype="float32")
    layers = [
        {**start, "name": "a", "inbound_nodes": []},
        {**inner, "name": "inner", "inbound_nodes": node},
    ]
    config = {"name": "m", "layers": layers, "input_layers": [["a", 0, 0]]}
    return {"class_name": "Model", "config": {**config, "output_layers": [["inner", 1, 0]]}}


@pytest.mark.parametrize("how", ["plain", "TimeDistributed", "Bidirectional", "model", "graph"])
def test_a_lambda_layer_is_refused_wherever_it_is(marker, tmp_path, how):
    path = write_h5(tmp_path / "model.h5", nested(lambda_of_keras_2(), how), WEIGHTS)
    with pytest.raises(UserCodeError, match=r"'scale' .*model\.h5"):
        made(file_model(path))
    architecture = tmp_path / "model.json"
    architecture.write_text(json.dumps(nested(lambda_of_keras_2(), how)))
    with pytest.raises(UserCodeError, match=r"'scale' .*\.json"):
        made(file_model(architecture=architecture))


def test_a_lambda_layer_runs_where_it_is_trusted(tmp_path):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2), keras.layers.Lambda(lambda x: 2.0 * x)]
    )
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    path = tmp_path / "model.keras"
    with pytest.raises(UserCodeError, match="Lambda layer"):
        made(file_model(path))
    x = np.ones((1, 2), np.float32)
    outputs = made(file_model(path, is_trusted=True))(x)
    np.testing.assert_allclose(outputs, model(x), rtol=1e-6)


def today(module, name, /, **config):
    return {
        "module": module,
        "class_name": name,
        "config": {"name": "sly", **config},
        "registered_name": None,
    }


def function(module, name):
    return {
        "module": module,
        "class_name": "function",
        "config": name,
        "registered_name": "function",
    }


@pytest.mark.parametrize(
    ("sly", "says"),
    [
        (today("os", "system", command="touch"), "os.system .*'sly'"),
        (today("subprocess", "Popen"), "subprocess.Popen"),
        (today("builtins", "eval"), "builtins.eval"),
        (today("keras.utils", "get_file", origin="http://127.0.0.1"), "keras.utils.get_file"),
        (today("keras.saving", "load_model", filepath="x"), "keras.saving.load_model"),
        (today("keras.models", "load_model", filepath="x"), "keras.models.load_model"),
        (today("keras.src.saving.saving_api", "load_model"), "keras.src.saving.saving_api"),
        (today("keras.layers", "TFSMLayer", filepath="x"), "TFSMLayer .*'sly'"),
        (today("keras.layers", "TorchModuleWrapper", module="x"), "TorchModuleWrapper"),
        (today("keras.layers", "Dense", units=1, activation=function("os", "abort")), "os.abort"),
        (today("keras.layers", "StringLookup", vocabulary="/etc/passwd"), "'/etc/passwd' .*'sly'"),
    ],
)
def test_what_keras_would_import_or_run_is_refused(marker, tmp_path, sly, says):
    first = today("keras.layers", "InputLayer", batch_shape=[None, 4])
    config = today("keras", "Sequential", layers=[first, sly])
    architecture = tmp_path / "model.json"
    architecture.write_text(json.dumps(config))
    with pytest.raises(UserCodeError, match=says):
        made(file_model(architecture=architecture))
    path = archive(tmp_path / "model.keras", config)
    with pytest.raises(UserCodeError, match=says):
        made(file_model(path))


def test_a_function_as_bytes_in_an_activation_or_a_loss_is_refused(marker, tmp_path):
    sly = {"class_name": "__lambda__", "config": {"code": code(), "defaults": None}}
    activation = layer("Activation", "act", activation=sly)
    path = write_h5(tmp_path / "model.h5", sequential(FIRST, activation), WEIGHTS)
    with pytest.raises(UserCodeError, match=r"bytes .*'act'"):
        made(file_model(path))
    compiled = {**COMPILED, "loss": sly}
    path = write_h5(tmp_path / "model.h5", sequential(FIRST), WEIGHTS, compiled=compiled)
    with pytest.raises(UserCodeError, match="as bytes"):
        made(file_model(path))


def hdf5_bytes():
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.create_group("layers")
    return content.getvalue()


def archive(path, config, *, weights=None, **members):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("config.json", json.dumps(config))
        file.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        file.writestr("model.weights.h5", weights or hdf5_bytes())
        for name, content in members.items():
            file.writestr(name, content)
    return path


PLAIN = today("keras", "Sequential", layers=[])


@pytest.mark.parametrize(
    "name", ["../" + MARKER, "/tmp/" + MARKER, "assets/../../" + MARKER, "code.py", "a\\b"]
)
def test_an_archive_with_other_members_is_refused(marker, tmp_path, name):
    path = archive(tmp_path / "model.keras", PLAIN, **{name: "x"})
    with pytest.raises(UserCodeError, match="a member"):
        made(file_model(path))


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("config.json", json.dumps(PLAIN))
        file.writestr("metadata.json", "{}")
        file.writestr("model.weights.h5", bytes(80 << 20))
    with pytest.raises(UserCodeError, match=r"83,886,080"):
        made(file_model(path))


BIAS = "model_weights/dense_1/dense_1/bias:0"


def external_link(file, secret):
    file[BIAS] = h5py.ExternalLink(secret, "x")


def soft_link(file, secret):
    file[BIAS] = h5py.SoftLink("/model_weights")


def external_data(file, secret):
    file.create_dataset(BIAS, (3,), "f4", external=[(str(secret), 0, 12)])


def virtual(file, secret):
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "x", (3,))
    file.create_virtual_dataset(BIAS, layout)


def shape_bomb(file, secret):
    file.create_dataset(BIAS, (1 << 40,), "f4", chunks=(1024,))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (external_link, "bias:0.*ExternalLink"),
        (soft_link, "bias:0.*SoftLink"),
        (external_data, "bias:0.*data in the file"),
        (virtual, "bias:0.*virtual dataset"),
        (shape_bomb, r"4,398,046,511,104 bytes.*bias:0"),
    ],
)
def test_hdf5_that_reaches_out_of_its_file_is_refused(tmp_path, change, says):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.ones(3, np.float32)
    path = write_h5(tmp_path / "model.h5", sequential(FIRST), WEIGHTS)
    with h5py.File(path, "a") as file:
        del file[BIAS]
        change(file, secret)
    for model in (file_model(path), file_model(path, is_trusted=True)):
        with pytest.raises(UserCodeError, match=says):
            made(model)


class Sly:
    def __reduce__(self):
        return open, (MARKER, "w")


@pytest.mark.parametrize("name", ["model.pkl", "model.h5", "model.keras", "model.pickle"])
def test_a_pickle_is_no_model_under_any_name(marker, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Sly()))
    with pytest.raises(UserCodeError, match=r"pickle|HDF5|archive"):
        spec_of(file_model(path, is_trusted=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 200_000, "is not JSON"),
        ('{"class_name": "Sequential", "config": ' + "[" * 300 + "]" * 300 + "}", "nests its"),
    ],
)
def test_json_without_an_end_is_an_error(tmp_path, text, says):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(UserCodeError, match=says):
        spec_of(file_model(architecture=path))
