"""A SavedModel of a class of its own, trained as the program that it is."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = ["SavedProgram"]


class SavedProgram(keras.Model):  # type: ignore[misc]  # Keras ships no types.
    """Calls what a SavedModel holds; its variables are those of this model."""

    def __init__(self, path: Path, name: str) -> None:
        """Load the program.

        Args:
            path: The folder, which is trusted.
            name: Of the model.

        Raises:
            UserCodeError: It cannot be called, or changes variables by itself.
        """
        super().__init__(name=name)
        self._program = tf.saved_model.load(str(path))
        if not callable(self._program):
            raise UserCodeError(
                f"The SavedModel {path} holds no model that can be called.",
                received=type(self._program).__name__,
                cure="Write it with model.save of Keras 2.",
            )
        trained = list(getattr(self._program, "trainable_variables", ()))
        others = {each.name for each in getattr(self._program, "variables", ())}
        others -= {each.name for each in trained}
        if others:
            # They would change inside of a step, also of one that fails and is repeated.
            raise UserCodeError(
                f"The program of the SavedModel {path} has variables that it changes by itself.",
                received=", ".join(sorted(others)),
                cure="Write the class as a Keras 3 model in the model zoo.",
            )
        for each in trained:
            self._track_variable(
                keras.Variable(
                    initializer=each,
                    dtype=each.dtype,
                    shape=each.shape,
                    name=each.name.partition(":")[0].replace("/", "_"),
                )
            )
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """What the program computes of a batch, as in training where it knows a difference."""
        inputs = self._as_written(inputs)
        try:
            return self._program(inputs, training=training)
        except (TypeError, ValueError):
            # A class whose `call` has no `training` was saved without it.
            return self._program(inputs)

    def _as_written(self, inputs: Any) -> Any:
        """Inputs of the types that the program was written with: TensorFlow takes no others.

        Those are often of float64, as NumPy makes them.
        """
        for function in getattr(self._program.__call__, "concrete_functions", ()):
            (first, *_), _ = function.structured_input_signature
            try:
                tf.nest.assert_same_structure(inputs, first)
            except (TypeError, ValueError):
                continue
            return tf.nest.map_structure(_cast, inputs, first)
        return inputs


def _cast(value: Any, spec: Any) -> Any:
    is_float = tf.is_tensor(value) and value.dtype.is_floating and spec.dtype.is_floating
    return tf.cast(value, spec.dtype) if is_float else value
