"""Models in files, as a model spec names them: 2 ranks, a worker killed, and what comes of it."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from edl_horovod import trained_model
from edl_horovod.job import events
from edl_horovod.trained_model.params import read_params
from tests import ibm_fl
from tests.frameworks import FRAMEWORKS, NEEDS_KERAS
from tests.ibm_fl import changed
from tests.integration.conftest import REPOSITORY, run_script
from tests.ports import free_port

NUM_RECORDS, EPOCHS = 240, 12
RANDOM = np.random.default_rng(8)


def torch_sequence(folder):
    """The module of the reference document, saved whole."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, 1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 1),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Dropout2d(p=0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout2d(p=0.5),
        nn.Linear(128, 10),
        nn.LogSoftmax(dim=1),
    )
    torch.save(model, folder / "pytorch_sequence.pt")
    return {
        "name": "PytorchFLModel",
        "path": "ibmfl.model.pytorch_fl_model",
        "spec": {
            "model_name": "pytorch-nn",
            "model_definition": "pytorch_sequence.pt",
            "optimizer": "optim.Adam",
            "loss_criterion": "nn.NLLLoss",
        },
    }


def keras_layers(tf_keras):
    """The Keras model of the reference document, as Keras 2 makes it."""
    layers = tf_keras.layers
    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential(
        [
            layers.Conv2D(32, kernel_size=(3, 3), activation="relu", input_shape=(28, 28, 1)),
            layers.Conv2D(64, (3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        loss=tf_keras.losses.categorical_crossentropy,
        optimizer=tf_keras.optimizers.Adadelta(1.0),
        metrics=["accuracy"],
    )
    return model


def keras_whole(folder):
    """Layers, weights and what it was compiled with, in one file."""
    model = keras_layers(pytest.importorskip("tf_keras"))
    model.save(folder / "compiled_keras.h5", save_format="h5")
    spec = {"model_name": "keras-cnn", "model_definition": "compiled_keras.h5"}
    return {"name": "KerasFLModel", "path": "ibmfl.model.keras_fl_model", "spec": spec}


def keras_apart(folder):
    """The layers as JSON, the weights, and what it is compiled with."""
    model = keras_layers(pytest.importorskip("tf_keras"))
    (folder / "model_architecture.json").write_text(model.to_json())
    model.save_weights(folder / "model_weights.h5", save_format="h5")
    spec = {
        "model_name": "keras-cnn",
        "model_architecture": "model_architecture.json",
        "model_weights": "model_weights.h5",
        "compile_model_options": {
            "loss": "categorical_crossentropy",
            "optimizer": {"value": "adadelta", "args": {"learning_rate": 1.0}},
            "metrics": ["accuracy"],
        },
    }
    return {"name": "KerasFLModel", "spec": spec}


def keras_own_loss(folder):
    """A loss of the user's own, in a file of the model zoo."""
    tf_keras = pytest.importorskip("tf_keras")
    model = keras_layers(tf_keras)

    def test_loss(labels, outputs):
        return tf_keras.losses.categorical_crossentropy(labels, outputs)

    model.compile(loss=test_loss, optimizer="adam")
    model.save(folder / "model.h5", save_format="h5")
    (folder / "loss.py").write_text(
        "import keras\n\n\ndef test_loss(labels, outputs):\n"
        "    return keras.losses.categorical_crossentropy(labels, outputs)\n"
    )
    spec = {
        "model_name": "keras-cnn",
        "model_definition": "model.h5",
        "custom_objects": [{"key": "test_loss", "value": "test_loss", "path": "loss.py"}],
    }
    return {"name": "KerasFLModel", "spec": spec}


def tensorflow_2_1(folder):
    """The `.h5` of the reference document as TensorFlow 2.1 laid it out, by hand: layers, weights,
    and what it was compiled with."""
    from tests import keras_files as keras_2

    def conv(name, filters, **settings):
        uniform = {"class_name": "GlorotUniform", "config": {"seed": None}}
        return keras_2.layer(
            "Conv2D",
            name,
            dtype="float32",
            filters=filters,
            kernel_size=[3, 3],
            strides=[1, 1],
            padding="valid",
            data_format="channels_last",
            dilation_rate=[1, 1],
            activation="relu",
            use_bias=True,
            kernel_initializer=uniform,
            bias_initializer={"class_name": "Zeros", "config": {}},
            **settings,
        )

    def pool(name):
        sizes = {"pool_size": [2, 2], "strides": [2, 2], "data_format": "channels_last"}
        return keras_2.layer("MaxPooling2D", name, dtype="float32", padding="valid", **sizes)

    config = keras_2.sequential(
        conv("conv2d", 32, batch_input_shape=[None, 28, 28, 1]),
        pool("max_pooling2d"),
        conv("conv2d_1", 64),
        pool("max_pooling2d_1"),
        keras_2.layer("Flatten", "flatten", dtype="float32", data_format="channels_last"),
        keras_2.layer("Dropout", "dropout", dtype="float32", rate=0.5, noise_shape=None, seed=None),
        keras_2.dense("dense", 10, activation="softmax", dtype="float32"),
    )
    random = np.random.default_rng(1)
    shapes = {"conv2d": (3, 3, 1, 32), "conv2d_1": (3, 3, 32, 64), "dense": (1600, 10)}
    weights = {
        name: {
            "kernel": random.normal(scale=np.prod(shape[:-1]) ** -0.5, size=shape).astype("f4"),
            "bias": np.zeros(shape[-1], np.float32),
        }
        for name, shape in shapes.items()
    }
    others = ("max_pooling2d", "max_pooling2d_1", "flatten", "dropout")
    compiled = {
        "loss": "categorical_crossentropy",
        "metrics": ["accuracy"],
        "weighted_metrics": None,
        "sample_weight_mode": None,
        "loss_weights": None,
        "optimizer_config": {
            "class_name": "Adam",
            "config": {
                "name": "Adam",
                "learning_rate": 0.001,
                "decay": 0.0,
                "beta_1": 0.9,
                "beta_2": 0.999,
                "epsilon": 1e-07,
                "amsgrad": False,
            },
        },
    }
    keras_2.write_h5(
        folder / "compiled_tf_keras.h5",
        config,
        {**weights, **{name: {} for name in others}},
        version="2.2.4-tf",
        compiled=compiled,
    )
    spec = {"model_name": "tf-cnn", "model_definition": "compiled_tf_keras.h5"}
    return {"name": "TensorFlowFLModel", "path": "ibmfl.model.tensorflow_fl_model", "spec": spec}


def tensorflow_program(folder):
    """A SavedModel of a class of its own, which trains as the program that it is."""
    tf_keras = pytest.importorskip("tf_keras")
    layers = tf_keras.layers

    class MyModel(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.conv1 = layers.Conv2D(32, 3, activation="relu")
            self.flatten = layers.Flatten()
            self.d1 = layers.Dense(128, activation="relu")
            self.d2 = layers.Dense(10)

        def call(self, x):
            return self.d2(self.d1(self.flatten(self.conv1(x))))

    tf_keras.utils.set_random_seed(1)
    model = MyModel()
    model.compile(
        optimizer=tf_keras.optimizers.Adam(),
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    model(np.zeros((28, 28, 28, 1), np.float32))
    model.save(folder / "saved", save_format="tf")
    spec = {"model_name": "tf-cnn", "model_definition": "saved"}
    return {"name": "TensorFlowFLModel", "path": "ibmfl.model.tensorflow_fl_model", "spec": spec}


KINDS = {
    "keras": [keras_whole, keras_apart, keras_own_loss, tensorflow_2_1, tensorflow_program],
    "torch": [torch_sequence],
}
CASES = [
    pytest.param(*framework.values, make, id=make.__name__, marks=framework.marks)
    for framework in FRAMEWORKS
    for make in KINDS[framework.values[0]]
]


def write_pictures(folder, name, *, is_one_hot):
    """Pictures whose class is how bright they are."""
    classes = RANDOM.integers(0, 10, size=NUM_RECORDS)
    shape = (NUM_RECORDS, 1, 28, 28) if name == "torch" else (NUM_RECORDS, 28, 28, 1)
    noise = RANDOM.normal(scale=0.05, size=shape)
    pictures = noise + classes[:, None, None, None] / 5 - 1
    labels = np.eye(10, dtype=np.float32)[classes] if is_one_hot else classes
    np.savez(folder / "pictures.npz", x=pictures.astype(np.float32), y=labels)
    return folder / "pictures.npz"


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.further
@pytest.mark.parametrize(("name", "make"), CASES)
def test_a_model_in_files_survives_a_kill_and_is_used(start, name, make, tmp_path):
    sections = {"model": make(tmp_path), "fusion": {"name": "IterAvgFusionHandler"}}
    (tmp_path / "config.yml").write_text(yaml.safe_dump(sections))
    is_one_hot = make in (keras_whole, keras_apart, keras_own_loss, tensorflow_2_1)
    data = f"data={write_pictures(tmp_path, name, is_one_hot=is_one_hot)}"
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    hurry = tmp_path / "hurry"
    job = start(
        "train",
        f"model_spec={tmp_path / 'config.yml'}",
        data,
        f"input_fn={name}_rows.feed",
        f"params.slow_until={hurry}",
        "train.batch_size=24",
        f"train.epochs={EPOCHS}",
        "launch.np=2",
        "trust=model",
        **own_cache,
    )
    job.wait_for_step(5)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    hurry.touch()
    job.succeed()
    assert job.events("job")[-1].event.steps == NUM_RECORDS // 24 * EPOCHS
    assert "effect here: fusion" in job.printed
    trained = f"trained_model={tmp_path / 'out'}"
    evaluated = start("evaluate", trained, data).succeed()
    loss = evaluated.events("job")[-1].event.metrics["loss"]
    assert loss < 0.8 * job.events("step")[0].event.loss
    start("predict", trained, data, f"output={tmp_path / 'predicted'}").succeed()
    assert any((tmp_path / "predicted").iterdir())


def write_digits(folder, num_parties):
    """scikit-learn's digits: a file of each party as IBM FL has it, and one to evaluate on."""
    from sklearn.datasets import load_digits

    pictures, classes = load_digits(return_X_y=True)
    x, y = (pictures / 16).astype(np.float32), classes
    for party in range(num_parties):
        of_party = slice(party, 1440, num_parties)
        arrays = {"x_train": x[of_party], "y_train": y[of_party]}
        np.savez(folder / f"data_party{party}.npz", **arrays, x_test=x[1440:], y_test=y[1440:])
    np.savez(folder / "test.npz", x_train=x[1440:], y_train=y[1440:])


def write_keras_file(path):
    """A compiled model for the digits, as Keras 2 writes it."""
    from tests import keras_files as keras_2

    random = np.random.default_rng(1)
    config = keras_2.sequential(
        keras_2.dense("dense_1", 32, activation="relu", batch_input_shape=[None, 64]),
        keras_2.dense("dense_2", 10, activation="softmax"),
    )
    weights = {
        name: {
            "kernel": random.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32),
            "bias": np.zeros(shape[1], np.float32),
        }
        for name, shape in {"dense_1": (64, 32), "dense_2": (32, 10)}.items()
    }
    compiled = {
        **keras_2.COMPILED,
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    keras_2.write_h5(path, config, weights, compiled=compiled)


@pytest.mark.further
@NEEDS_KERAS
@pytest.mark.timeout(240)
def test_files_of_ibm_fl_train_with_three_parties(tmp_path):
    write_digits(tmp_path, 3)
    port = free_port()
    write_keras_file(tmp_path / "compiled_keras.h5")
    aggregator = changed(ibm_fl.AGGREGATOR, "connection.info.port", port)
    wanted = {"perc_quorum": 1.0, "rounds": 40, "termination_accuracy": 0.85}
    for key, value in wanted.items():
        aggregator = changed(aggregator, f"hyperparams.global.{key}", value)
    local = {"optimizer": {"lr": 0.1}, "training": {"epochs": 2, "batch_size": 32}}
    aggregator = changed(aggregator, "hyperparams.local", local)
    (tmp_path / "config_agg.yml").write_text(yaml.safe_dump(aggregator))
    for number in range(3):
        sections = changed(ibm_fl.PARTY, "aggregator.port", port)
        sections = changed(sections, "data.info.npz_file", f"data_party{number}.npz")
        sections = changed(sections, "model.spec.model_definition", "compiled_keras.h5")
        (tmp_path / f"config_party{number}.yml").write_text(yaml.safe_dump(sections))
    script = """
        edl import-ibm-fl config_agg.yml > coordinator.yaml
        edl federate -q -cd . -cn coordinator job_dir=federation &
        for number in 0 1 2; do
            edl import-ibm-fl config_agg.yml config_party$number.yml > party$number.yaml
        done
        until [ -e federation/tokens/party2.token ]; do sleep 0.1; done
        for number in 0 1 2; do
            edl party -q --join 127.0.0.1:PORT --party-token federation/tokens/party$number.token \\
                party$number.yaml output=model$number validation_data=test.npz \\
                launch.threads_per_rank=1 &
        done
        wait
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
    _, errors = run_script(script.replace("PORT", str(port)), tmp_path, variables, seconds=200)
    assert "max_timeout is federated" in errors
    trained = [trained_model.read(tmp_path / f"model{number}") for number in range(3)]
    assert trained[0].metrics["accuracy"] >= 0.85
    recorded = events.read(tmp_path / "model0.job" / "events.jsonl")
    rounds = [e.event.step for e in recorded if e.event.kind == "step"]
    assert 1 <= rounds[-1] < 40
    first, *others = (dict(read_params(files.params_files)) for files in trained)
    for values in others:
        for name, value in first.items():
            np.testing.assert_array_equal(values[name], value, err_msg=name)
