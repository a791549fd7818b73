"""Support model files for Keras 2: names that Keras 3 lacks, and functions on symbolic tensors.

In `x = keras.Input(...); y = tf.reshape(x, ...)` Keras 3 raises, and asks for a layer around the
call. This module creates that layer. When a TensorFlow function rejects its arguments, TensorFlow
asks the registered global dispatchers.
"""

import functools
import warnings
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.elasticdl.feature_columns import DenseFeatures

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
    _allow_functions()
    for layers in (keras.layers, tf.keras.layers):
        if not hasattr(layers, DenseFeatures.__name__):
            setattr(layers, DenseFeatures.__name__, DenseFeatures)


def require_keras_3(model: keras.Model, name: str) -> None:
    """Reject layers of another Keras: Keras 3 would not find or train their weights.

    Raises:
        UserCodeError: The model or one of its layers contains such a layer.
    """
    for layer in model._flatten_layers():
        attributes = [
            (name, type(item))
            for name, value in vars(layer).items()
            for item in (value if isinstance(value, list | tuple) else [value])
        ]
        for attribute, value_class in attributes:
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


class TensorFunction(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """A layer that calls a TensorFlow function; its inputs are the symbolic arguments."""

    def __init__(self, function: Any, arguments: Any) -> None:
        super().__init__()
        self._convert_input_args = False
        flat = tf.nest.flatten(arguments)
        self._indices = [index for index, value in enumerate(flat) if _is_symbolic(value)]
        self._run = functools.partial(_run, function, arguments, flat, self._indices)
        self.symbolic = [flat[index] for index in self._indices]

    def call(self, tensors: list[tf.Tensor]) -> Any:
        """Call the function with `tensors` in place of its symbolic arguments."""
        return self._run(tensors)

    def compute_output_spec(self, tensors: list[keras.KerasTensor]) -> Any:
        """Infer the function's result for tensors of these shapes and types."""
        try:
            return super().compute_output_spec(tensors)
        except (TypeError, ValueError):
            # Keras 3.15.1 takes the product of a dense tensor and a number for a sparse tensor.
            dense = [keras.KerasTensor(tensor.shape, tensor.dtype) for tensor in tensors]
            if not any(tensor.sparse for tensor in tensors):
                raise
            return super().compute_output_spec(dense)


def _run(function: Any, arguments: Any, flat: list[Any], indices: list[int], tensors: Any) -> Any:
    filled = list(flat)
    for index, tensor in zip(indices, tensors, strict=True):
        filled[index] = tensor
    args, kwargs = tf.nest.pack_sequence_as(arguments, filled)
    return function(*args, **kwargs)


class _Dispatcher(tf.__internal__.dispatch.GlobalOpDispatcher):  # type: ignore[misc]  # As above.
    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        if not any(map(_is_symbolic, tf.nest.flatten((args, kwargs)))):
            return self.NOT_SUPPORTED
        call = TensorFunction(op, (args, kwargs))
        return call(call.symbolic)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)


@functools.cache
def _allow_functions() -> None:
    """Register the dispatcher; further calls do nothing."""
    _Dispatcher().register()
