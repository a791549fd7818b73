"""Provide names that model files for Keras 2 use and Keras 3 lacks."""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.elasticdl.feature_columns import DenseFeatures
from edl_horovod.frameworks.keras.symbolic import allow_functions

__all__ = ["install", "name_only_input", "require_keras_3"]

_PRIVATE = "tensorflow.python.keras"
"""TensorFlow's copy of Keras 2, which it no longer exports."""


def install() -> None:
    """Provide `DenseFeatures` and allow TensorFlow's functions on symbolic tensors.

    This replaces no existing name. Arguments that Keras 3 ignores with a warning, although the
    model would then train differently, become errors.
    """
    warnings.filterwarnings("error", message="Argument `decay` is no longer supported")
    # Keras warns about a list for a single tensor although it matched the input by its name.
    warnings.filterwarnings(
        "ignore",
        message=r"The structure of `inputs` doesn't match the expected structure.\nExpected: \w+\n",
    )
    allow_functions()
    for layers in (keras.layers, tf.keras.layers):
        if not hasattr(layers, DenseFeatures.__name__):
            setattr(layers, DenseFeatures.__name__, DenseFeatures)


def require_keras_3(model: keras.Model, name: str) -> None:
    """Reject layers of another Keras: Keras 3 would not find or train their weights.

    Raises:
        UserCodeError: The model or one of its layers contains such a layer.
    """
    for layer in model._flatten_layers():
        for attribute, value in _attributes(layer):
            value_class = type(value)
            if value_class.__module__.startswith((f"{_PRIVATE}.", "tf_keras.")):
                raise UserCodeError(
                    f"The model of {name} holds a layer of another Keras, whose weights would not"
                    " be trained.",
                    received=f"{attribute} of {type(layer).__name__}: {value_class.__module__}"
                    f".{value_class.__qualname__}",
                    hint=f"Import from tensorflow.keras, not from {_PRIVATE} or tf_keras.",
                )


def name_only_input(model: keras.Model, features: Any) -> None:
    """Give the only input of a functional model the name of the only feature.

    Keras 2 accepted a dict of one feature for a model with one input regardless of the names.
    """
    inputs = getattr(model, "inputs", None)
    if isinstance(features, dict) and len(features) == 1 and inputs and len(inputs) == 1:
        (name,) = features
        if not isinstance(model.input, dict):
            # Keras compares both names.
            inputs[0].name = inputs[0]._keras_history.operation.name = name


def _attributes(layer: keras.Layer) -> Iterator[tuple[str, Any]]:
    for name, value in vars(layer).items():
        if isinstance(value, list | tuple):
            yield from ((name, item) for item in value)
        else:
            yield name, value
