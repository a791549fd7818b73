"""Allow TensorFlow functions on Keras' symbolic tensors, as Keras 2 does.

In `x = keras.Input(...); y = tf.reshape(x, ...)` Keras 3 raises, and asks for a layer around the
call. This module creates that layer. When a TensorFlow function rejects its arguments, TensorFlow
asks the registered global dispatchers.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

__all__ = ["allow_functions"]


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
def allow_functions() -> None:
    """Register the dispatcher; further calls do nothing."""
    _Dispatcher().register()
