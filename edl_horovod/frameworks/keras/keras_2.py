"""What model files of Keras 2 call and Keras 3 lacks."""

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
"""TensorFlow's own copy of Keras 2, which it exports no more."""


def install() -> None:
    """Provide `DenseFeatures`, and TensorFlow's functions on symbolic tensors.

    It replaces nothing: without it, what it provides is an error. What Keras 3 would ignore with a
    warning, and so train another model, becomes an error.
    """
    warnings.filterwarnings("error", message="Argument `decay` is no longer supported")
    # Keras found the input by its name, and yet warns that it got a list for a single tensor.
    warnings.filterwarnings(
        "ignore",
        message=r"The structure of `inputs` doesn't match the expected structure.\nExpected: \w+\n",
    )
    allow_functions()
    for layers in (keras.layers, tf.keras.layers):
        if not hasattr(layers, DenseFeatures.__name__):
            setattr(layers, DenseFeatures.__name__, DenseFeatures)


def require_keras_3(model: keras.Model, name: str) -> None:
    """Refuse layers of another Keras: Keras 3 sees none of their weights, and trains none.

    Raises:
        UserCodeError: The model, or a layer of it, holds one.
    """
    for layer in model._flatten_layers():
        for attribute, value in _values(layer):
            kind = type(value)
            if kind.__module__.startswith((f"{_PRIVATE}.", "tf_keras.")):
                raise UserCodeError(
                    f"The model of {name} holds a layer of another Keras, whose weights would not"
                    " be trained.",
                    received=f"{attribute} of {type(layer).__name__}: {kind.__module__}"
                    f".{kind.__qualname__}",
                    cure=f"Import from tensorflow.keras, not from {_PRIVATE} or tf_keras.",
                )


def name_only_input(model: keras.Model, features: Any) -> None:
    """Call the only input of a functional model as the only feature is called.

    Keras 2 handed a dict of one feature to a model of one input whatever their names.
    """
    inputs = getattr(model, "inputs", None)
    if isinstance(features, dict) and len(features) == 1 and inputs and len(inputs) == 1:
        (name,) = features
        if not isinstance(model.input, dict):
            # Keras looks at both names.
            inputs[0].name = inputs[0]._keras_history.operation.name = name


def _values(layer: keras.Layer) -> Iterator[tuple[str, Any]]:
    for name, value in vars(layer).items():
        if isinstance(value, list | tuple):
            yield from ((name, one) for one in value)
        else:
            yield name, value
