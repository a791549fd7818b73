"""A Keras model that runs the program of a SavedModel whose class is unknown."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = ["SavedProgram"]


class SavedProgram(keras.Model):  # type: ignore[misc]  # Keras ships no types.
    """Calls the program of a SavedModel and owns its trainable variables."""

    def __init__(self, path: Path, name: str) -> None:
        """Load the program.

        Args:
            path: The SavedModel's folder. Its program must be trusted.
            name: Name of the model.

        Raises:
            UserCodeError: The program cannot be called, or has variables that it changes itself.
        """
        super().__init__(name=name)
        self._program = tf.saved_model.load(str(path))
        if not callable(self._program):
            raise UserCodeError(
                f"The SavedModel {path} does not contain a callable model.",
                received=type(self._program).__name__,
                hint="Write it with model.save of Keras 2.",
            )
        trained = list(getattr(self._program, "trainable_variables", ()))
        untrained_names = {variable.name for variable in getattr(self._program, "variables", ())}
        untrained_names -= {variable.name for variable in trained}
        if untrained_names:
            # The program would change them within a step, even if that step fails and is repeated.
            raise UserCodeError(
                f"The program of the SavedModel {path} has variables that it changes itself.",
                received=", ".join(sorted(untrained_names)),
                hint="Rewrite the class as a Keras 3 model in the model zoo.",
            )
        for variable in trained:
            self._track_variable(
                keras.Variable(
                    initializer=variable,
                    dtype=variable.dtype,
                    shape=variable.shape,
                    name=variable.name.partition(":")[0].replace("/", "_"),
                )
            )
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Run the program on a batch, with `training` if the program accepts it."""
        inputs = self._cast_inputs(inputs)
        try:
            return self._program(inputs, training=training)
        except (TypeError, ValueError):
            # The program lacks `training` if the `call` of its class does.
            return self._program(inputs)

    def _cast_inputs(self, inputs: Any) -> Any:
        """Cast floats to the types of the program's signature, as TensorFlow requires.

        The signature often has float64, the default of NumPy.
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
