"""TensorFlow's functions on Keras' symbolic tensors, as Keras 2 let model files call them.

In `x = keras.Input(...); y = tf.reshape(x, ...)` Keras 3 raises, and asks for a layer around the
call. Here each such call becomes that layer. TensorFlow asks the dispatchers that are registered
for all of its functions when one refuses its arguments.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

__all__ = ["allow_functions"]


class TensorFunction(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """A function of TensorFlow, with all its arguments but those that are symbolic tensors."""

    def __init__(self, function: Any, arguments: Any) -> None:
        super().__init__()
        self._convert_input_args = False
        flat = tf.nest.flatten(arguments)
        self._places = [place for place, one in enumerate(flat) if _is_symbolic(one)]
        self._run = functools.partial(_run, function, arguments, flat, self._places)
        self.symbolic = [flat[place] for place in self._places]

    def call(self, tensors: list[tf.Tensor]) -> Any:
        """What the function returns for these tensors in the places of the symbolic ones."""
        return self._run(tensors)

    def compute_output_spec(self, tensors: list[keras.KerasTensor]) -> Any:
        """What the function returns for tensors of these shapes and types."""
        try:
            return super().compute_output_spec(tensors)
        except (TypeError, ValueError):
            # Keras 3.15.1 takes the product of a dense tensor and a number for a sparse tensor.
            dense = [keras.KerasTensor(each.shape, each.dtype) for each in tensors]
            if not any(each.sparse for each in tensors):
                raise
            return super().compute_output_spec(dense)


def _run(function: Any, arguments: Any, flat: list[Any], places: list[int], given: Any) -> Any:
    filled = list(flat)
    for place, tensor in zip(places, given, strict=True):
        filled[place] = tensor
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
    """Allow them from now on; further calls do nothing."""
    _Dispatcher().register()
