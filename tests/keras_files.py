"""Write models as Keras 2 wrote them: the layouts by hand, since no Keras 2 is installed."""

import json

import h5py
import numpy as np

from edl_horovod.frameworks.keras.file_models import spec_of
from edl_horovod.models.spec_zoo import FileModel

COMPILED = {
    "optimizer_config": {
        "class_name": "SGD",
        "config": {"lr": 0.01, "momentum": 0.0, "decay": 0.0, "nesterov": False},
    },
    "loss": "mse",
    "metrics": [],
    "sample_weight_mode": None,
    "loss_weights": None,
}
"""As Keras 2.2.4 wrote how a model was compiled."""
FROM_FILE = {"optimizer": "sgd", "loss": "mse"}


def layer(kind, name, **settings):
    """A layer as Keras 2 described it."""
    return {"class_name": kind, "config": {"name": name, "trainable": True, **settings}}


def dense(name, units, *, activation="linear", **settings):
    uniform = {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform", "seed": None}
    return layer(
        "Dense",
        name,
        units=units,
        activation=activation,
        use_bias=True,
        kernel_initializer={"class_name": "VarianceScaling", "config": uniform},
        bias_initializer={"class_name": "Zeros", "config": {}},
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **settings,
    )


def sequential(*layers):
    return {"class_name": "Sequential", "config": {"name": "sequential_1", "layers": [*layers]}}


def write_h5(path, config, weights, *, version="2.2.4", compiled=COMPILED, encode=str.encode):
    """A whole model in the layout of Keras 2.

    Args:
        path: Where to.
        config: The model's.
        weights: Arrays by their names, for each layer: {"dense_1": {"kernel": array}}.
        version: Of Keras.
        compiled: How it was compiled; None where it was not.
        encode: What makes attributes of text; Keras 2.2 wrote bytes, some wrote text.
    """
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = encode(version)
        file.attrs["backend"] = encode("tensorflow")
        file.attrs["model_config"] = encode(json.dumps(config))
        if compiled is not None:
            file.attrs["training_config"] = encode(json.dumps(compiled))
        write_layers(file.create_group("model_weights"), weights, version=version, encode=encode)
    return path


def write_weights(path, weights, **options):
    with h5py.File(path, "w") as file:
        write_layers(file, weights, **options)
    return path


def write_layers(group, weights, *, version="2.2.4", encode=str.encode, backend="tensorflow"):
    group.attrs["layer_names"] = [encode(name) for name in weights]
    group.attrs["backend"] = encode(backend)
    group.attrs["keras_version"] = encode(version)
    for name, arrays in weights.items():
        names = [f"{name}/{weight_name}:0" for weight_name in arrays]
        inside = group.create_group(name)
        inside.attrs["weight_names"] = [encode(weight_name) for weight_name in names]
        for weight_name, array in zip(names, arrays.values(), strict=True):
            inside[weight_name] = array


def file_model(definition=None, **fields):
    return FileModel(name="from-files", definition=definition, **fields)


def made(model):
    """The model that the spec of some files creates."""
    return spec_of(model)().create_model()


def arrays(seed, **shapes):
    random = np.random.default_rng(seed)
    return {
        name: random.normal(scale=0.5, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def predicted(model, features):
    return np.asarray(model(features, training=False))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
