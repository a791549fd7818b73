"""A Keras model's outputs, and what they are."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.frameworks.keras.own_parts import overrides
from edl_horovod.frameworks.values import Output, flatten_outputs
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["KerasPrediction", "describe_outputs"]


class KerasPrediction:
    """The prediction of a batch, traced."""

    def __init__(self, loaded: LoadedSpec, model: keras.Model, element_spec: Any) -> None:
        """Trace it; `element_spec` has the `tf.TypeSpec`s of the features, and None.

        Raises:
            UserCodeError: The model raised something.
        """
        with user_code(f"Running the model of {loaded.label}", root=loaded.zoo):
            self._outputs = tf.function(_predicting(model), autograph=False).get_concrete_function(
                element_spec[0]
            )

    def describe(self) -> tuple[Output, ...]:
        """What the outputs are, sorted by name."""
        return describe_outputs(self._outputs.structured_outputs)

    def outputs(self, features: Any) -> Any:
        """What the model returns for a batch's features."""
        return self._outputs(features)

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """These outputs by name."""
        return {name: np.asarray(value) for name, value in flatten_outputs(outputs).items()}


def _predicting(model: keras.Model) -> Callable[[Any], Any]:
    """The model's function of a batch's features."""
    if overrides(model, "predict_step"):
        # It takes a tuple for features with labels and weights.
        return lambda features: model.predict_step(
            (features,) if isinstance(features, tuple) else features
        )
    return lambda features: model(features, training=False)


def describe_outputs(outputs: Any) -> tuple[Output, ...]:
    """Describe tensors or `tf.TypeSpec`s in the structure that a model returns, sorted by name."""
    return tuple(_described(name, each) for name, each in sorted(flatten_outputs(outputs).items()))


def _described(name: str, tensor: Any) -> Output:
    if not isinstance(tensor, tf.Tensor | tf.TensorSpec):
        problem = "it is no dense tensor"
        return Output(name=name, dtype=type(tensor).__name__, batch_shape=None, problem=problem)
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return Output(name=name, dtype=tensor.dtype.name, batch_shape=shape)
