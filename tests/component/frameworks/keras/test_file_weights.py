"""Architectures with weights of any layout, archives, and files that are not what they claim."""

import json
import zipfile

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER, later

if LATER:
    import h5py
    import keras

    from edl_horovod.frameworks.keras.file_models import spec_of
    from tests.keras_files import (
        FROM_FILE,
        arrays,
        close,
        dense,
        file_model,
        layer,
        made,
        predicted,
        sequential,
        write_h5,
        write_weights,
    )

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
if LATER:
    DENSE = sequential(
        dense("dense_1", 3, batch_input_shape=[None, 4]), dense("dense_2", 2, activation="relu")
    )
    WEIGHTS = {
        "dense_1": arrays(1, kernel=(4, 3), bias=(3,)),
        "dense_2": arrays(2, kernel=(3, 2), bias=(2,)),
    }


def expected():
    hidden = X @ WEIGHTS["dense_1"]["kernel"] + WEIGHTS["dense_1"]["bias"]
    return np.maximum(hidden @ WEIGHTS["dense_2"]["kernel"] + WEIGHTS["dense_2"]["bias"], 0.0)


def architecture(tmp_path, config=None, version="2.2.4"):
    path = tmp_path / "model.json"
    config = config or DENSE
    text = {**config, "keras_version": version, "backend": "tensorflow"}
    path.write_text(json.dumps(text if version else config))
    return path


def from_parts(architecture, weights=None):
    return file_model(architecture=architecture, weights=weights, compile_options=FROM_FILE)


def todays():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, activation="hard_sigmoid"),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(2),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("version", ["2.2.4", ""])
def test_an_architecture_of_keras_2_takes_weights_of_keras_2(tmp_path, version):
    weights = write_weights(tmp_path / "weights.h5", WEIGHTS)
    model = made(from_parts(architecture(tmp_path, version=version), weights))
    close(predicted(model, X), expected())


def test_weights_are_found_in_the_file_of_a_whole_model(tmp_path):
    whole = write_h5(tmp_path / "whole.h5", DENSE, WEIGHTS)
    close(predicted(made(from_parts(architecture(tmp_path), whole)), X), expected())


def test_weights_of_layers_with_other_names_fit_by_their_order(tmp_path):
    renamed = dict(zip(["one", "two"], WEIGHTS.values(), strict=True))
    weights = write_weights(tmp_path / "weights.h5", renamed)
    close(predicted(made(from_parts(architecture(tmp_path), weights)), X), expected())


def test_an_architecture_alone_begins_with_weights_of_its_own(tmp_path):
    model = made(from_parts(architecture(tmp_path)))
    assert model.count_params() == 4 * 3 + 3 + 3 * 2 + 2


@pytest.mark.parametrize("name", ["model.weights.h5", "renamed.h5"])
def test_an_architecture_of_keras_3_takes_weights_of_any_layout(tmp_path, name):
    model = todays()
    model.layers[2].moving_variance.assign([0.5, 1.0, 2.0])
    (tmp_path / "model.json").write_text(model.to_json())
    model.save_weights(tmp_path / "model.weights.h5")
    weights = (tmp_path / "model.weights.h5").rename(tmp_path / name)
    loaded = made(from_parts(tmp_path / "model.json", weights))
    close(predicted(loaded, X), predicted(model, X))


@pytest.mark.long
def test_an_archive_is_the_model_it_was(tmp_path):
    model = todays()
    model.fit(X, np.ones((5, 2), np.float32), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = made(file_model(tmp_path / "model.keras"))
    close(predicted(loaded, X), predicted(model, X))
    assert type(loaded.optimizer) is keras.optimizers.Adam
    y = np.ones((5, 2), np.float32)
    expected = model.evaluate(X, y, verbose=0, return_dict=True)
    assert loaded.evaluate(X, y, verbose=0, return_dict=True) == pytest.approx(expected)


def test_vocabularies_in_an_archive_stay(tmp_path):
    words = keras.layers.StringLookup(vocabulary=["a", "b"])
    text = keras.Input((1,), dtype="string")
    model = keras.Model(text, keras.layers.Embedding(3, 2)(words(text)))
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    texts = np.array([["b"], ["c"]], dtype=object)
    loaded = made(file_model(tmp_path / "model.keras"))
    close(predicted(loaded, keras.ops.convert_to_tensor(texts)), predicted(model, texts))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            later("{'dense_2': arrays(2, kernel=(3, 5), bias=(5,))}"),
            r"'kernel' of.*'dense_2'.*\(3, 5\)",
        ),
        (later("{'dense_2': arrays(2, kernel=(3, 2))}"), r"'dense_2'.*\b2\b.*\b1\b"),
        (later("{'dense_3': arrays(2, kernel=(3, 2), bias=(2,))}"), r"\b3\b.*\b2\b.*dense_3"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_layer_and_shapes(tmp_path, change, says):
    weights = write_weights(tmp_path / "weights.h5", {**WEIGHTS, **change})
    with pytest.raises(UserCodeError, match=says):
        made(from_parts(architecture(tmp_path), weights))


@pytest.mark.parametrize("sizes", [(4, 3), (3, 5), (3,), (3, 2, 2)])
def test_todays_weights_that_do_not_fit_are_refused(tmp_path, sizes):
    other = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(n) for n in sizes)])
    other.save_weights(tmp_path / "model.weights.h5")
    weights = tmp_path / "model.weights.h5"
    with pytest.raises(UserCodeError, match=r"model\.weights"):
        made(from_parts(architecture(tmp_path), weights))


def write_text(path, text):
    path.write_text(text)
    return path


def text_file(name, text="some text", *, field="definition"):
    return lambda folder: {field: write_text(folder / name, text)}


def folder_as_h5(tmp_path):
    (tmp_path / "folder.h5").mkdir()
    return {"definition": tmp_path / "folder.h5"}


def half_a_file(tmp_path):
    whole = write_h5(tmp_path / "half.h5", DENSE, WEIGHTS)
    whole.write_bytes(whole.read_bytes()[:3000])
    return {"definition": whole}


def empty_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "empty.keras", "w"):
        pass
    return {"definition": tmp_path / "empty.keras"}


def whole_and(tmp_path, **files):
    return {"definition": write_h5(tmp_path / "whole.h5", DENSE, WEIGHTS), **files}


def keras_1_architecture(tmp_path):
    first = layer("Dense", "dense_1", output_dim=3, batch_input_shape=[None, 4])
    return {"architecture": architecture(tmp_path, sequential(first), version="")}


def weights_of_theano(tmp_path):
    weights = write_weights(tmp_path / "weights.h5", WEIGHTS, backend="theano")
    return {"architecture": architecture(tmp_path), "weights": weights}


def hdf5_of_others(tmp_path):
    weights = write_weights(tmp_path / "weights.h5", {})
    with h5py.File(weights, "w") as file:
        file["x"] = 1.0
    return {"architecture": architecture(tmp_path), "weights": weights}


def unknown_layer_of_today(tmp_path):
    config = json.loads(todays().to_json())
    config["config"]["layers"][1]["class_name"] = "Densse"
    return {"architecture": write_text(tmp_path / "model.json", json.dumps(config))}


def one_layer(tmp_path, *, trainable=True, **settings):
    first = dense("dense_1", 3, **settings)
    first["config"]["trainable"] = trainable
    weights = {"dense_1": WEIGHTS["dense_1"]}
    return {"definition": write_h5(tmp_path / "model.h5", sequential(first), weights)}


def own_class(tmp_path):
    config = {"class_name": "Model", "config": {"name": "mine"}}
    return {"definition": write_h5(tmp_path / "model.h5", config, {})}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: {"definition": folder / "none.h5"}, r"none.h5"),
        (folder_as_h5, r"folder.h5.*saved_model.pb"),
        (text_file("text.h5"), r"text.h5.*b'some text'"),
        (half_a_file, r"half.h5"),
        (text_file("text.keras"), r"text.keras"),
        (empty_archive, r"empty.keras.*config.json"),
        (
            lambda folder: {"definition": write_weights(folder / "weights.h5", WEIGHTS)},
            r"model_weights.*model_architecture",
        ),
        (
            lambda folder: whole_and(folder, architecture=architecture(folder)),
            r"definition=.*architecture=",
        ),
        (lambda folder: whole_and(folder, weights=folder / "whole.h5"), r"definition=.*weights="),
        (lambda folder: {}, r"no files.*model_definition"),
        (text_file("m.onnx", ""), r"model_definition="),
        (
            lambda folder: {
                "definition": write_h5(folder / "old.h5", DENSE, WEIGHTS, version="1.2.2")
            },
            r"old.h5.*keras_version='1.2.2'",
        ),
        (keras_1_architecture, r"model.json.*Keras 1"),
        (weights_of_theano, r"backend='theano'"),
        (hdf5_of_others, r"save_weights"),
        (text_file("m.json", '{"layers": []}', field="architecture"), r"m\.json.*describe"),
        (unknown_layer_of_today, r"Densse.*'dense.*'Dense'"),
        (
            lambda folder: one_layer(folder, trainable=False, batch_input_shape=[None, 4]),
            r"2 weights.*trainable",
        ),
        (one_layer, r"Received: the model"),
        (own_class, r"class_name=.*custom_objects"),
    ],
)
def test_files_that_are_not_what_they_claim_are_refused(tmp_path, make, says):
    fields = {"compile_options": FROM_FILE, **make(tmp_path)}
    with pytest.raises(UserCodeError, match=says):
        spec_of(file_model(**fields))().create_model()
