"""Compute and describe a Keras model's outputs."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.frameworks.keras.compiled_objective import overrides
from edl_horovod.frameworks.values import Output, flatten_outputs
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["KerasPrediction", "describe_outputs"]


class KerasPrediction:
    """The traced prediction of one batch."""

    def __init__(self, loaded: LoadedSpec, model: keras.Model, element_spec: Any) -> None:
        """Trace the prediction.

        Args:
            loaded: The user's spec.
            model: The built model.
            element_spec: The `tf.TypeSpec`s of a batch's features, and None for the labels.

        Raises:
            UserCodeError: The model raised an exception.
        """
        with user_code(f"Running the model of {loaded.label}", root=loaded.zoo):
            self._outputs = tf.function(
                _predict_function(model), autograph=False
            ).get_concrete_function(element_spec[0])

    def describe(self) -> tuple[Output, ...]:
        """Describe the outputs, sorted by name."""
        return describe_outputs(self._outputs.structured_outputs)

    def outputs(self, features: Any) -> Any:
        """Compute the model's outputs for a batch's features."""
        return self._outputs(features)

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """Convert the outputs to arrays by name."""
        return {name: np.asarray(value) for name, value in flatten_outputs(outputs).items()}


def _predict_function(model: keras.Model) -> Callable[[Any], Any]:
    """Return the function from a batch's features to the model's outputs."""
    if overrides(model, "predict_step"):
        # predict_step would unpack a tuple of features as (features, labels, weights).
        return lambda features: model.predict_step(
            (features,) if isinstance(features, tuple) else features
        )
    return lambda features: model(features, training=False)


def describe_outputs(outputs: Any) -> tuple[Output, ...]:
    """Describe tensors or `tf.TypeSpec`s in the structure that a model returns, sorted by name."""
    return tuple(
        _describe(name, tensor) for name, tensor in sorted(flatten_outputs(outputs).items())
    )


def _describe(name: str, tensor: Any) -> Output:
    if not isinstance(tensor, tf.Tensor | tf.TensorSpec):
        problem = "it is not a dense tensor"
        return Output(name=name, dtype=type(tensor).__name__, batch_shape=None, problem=problem)
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return Output(name=name, dtype=tensor.dtype.name, batch_shape=shape)
