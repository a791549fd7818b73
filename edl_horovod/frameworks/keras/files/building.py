"""Build a Keras 3 model with its weights from a definition that was read from files."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.config_upgrade import (
    ConfigUpgrade,
    known_layers,
    unknown_layer,
)
from edl_horovod.frameworks.keras.files.definition import Definition, is_archive
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.frameworks.keras.files.weights import (
    assign_archive_weights,
    assign_arrays,
    assign_file_weights,
)
from edl_horovod.models.calling import user_code

__all__ = ["SavedProgram", "build_model", "current_config", "require_trainable"]


def current_config(definition: Definition, custom: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a model's configuration to the format of Keras 3.

    Raises:
        UserCodeError: Keras 3 lacks a layer or a layer's setting.
    """
    config = definition.config
    if "module" in config and not definition.is_keras_2:
        _require_layers(config, definition.file.name, custom)
        return config
    upgrade = ConfigUpgrade(
        definition.file.name, is_keras_2=definition.is_keras_2, custom=tuple(custom)
    )
    return upgrade.layer(config)


def build_model(definition: Definition, custom: Mapping[str, Any]) -> keras.Model:
    """Build the model of the files without compiling it.

    Args:
        definition: The definition from the files, already checked for unsafe content.
        custom: The user's objects by the names that the files use.

    Raises:
        UserCodeError: Keras cannot create the model, or the weights do not fit.
    """
    path = definition.file
    with user_code(f"Building the model of {path}", root=path.parent):
        built = _create(definition, custom)
    if not isinstance(built, keras.Model):
        raise UserCodeError(
            f"{path} does not describe a model.",
            received=type(built).__name__,
            hint="Save the whole model.",
        )
    require_trainable(built, path)
    return built


def require_trainable(model: keras.Model, path: Path) -> None:
    """Require a trainable weight.

    Raises:
        UserCodeError: The model has no weights, or all of its layers are frozen.
    """
    if not model.trainable_weights:
        raise UserCodeError(
            f"The model of {path} has no trainable weights.",
            received=f"{len(model.weights)} weights, none of them trainable",
            hint="Save it with layers whose `trainable` is true.",
        )


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


def _require_layers(config: Any, file: str, custom: Mapping[str, Any]) -> None:
    """Require that Keras has every layer that a configuration of Keras 3 names."""
    known = {*known_layers(), *custom}
    pending = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            class_name = value.get("class_name")
            if value.get("module") == "keras.layers" and class_name not in known:
                settings = value.get("config")
                name = settings.get("name", "") if isinstance(settings, dict) else ""
                raise unknown_layer(str(class_name), str(name), file)
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _create(definition: Definition, custom: Mapping[str, Any]) -> Any:
    path, source = definition.file, definition.source
    if is_archive(path) and not definition.is_keras_2:
        # Only this call also loads the assets of layers, such as vocabularies.
        return keras.saving.load_model(
            path, custom_objects=dict(custom), compile=False, safe_mode=not source.is_trusted
        )
    if definition.is_program:
        return SavedProgram(path, definition.config["config"]["name"])
    config = current_config(definition, custom)
    built = keras.saving.deserialize_keras_object(
        copy.deepcopy(config),  # Keras changes it.
        custom_objects=dict(custom),
        safe_mode=not source.is_trusted,
    )
    weights = source.weights or source.definition
    if weights is None:
        return built
    if not built.built:
        raise UserCodeError(
            f"{path} does not contain the model's input shape, so the model has no weights yet.",
            received=f"the model {built.name!r}",
            hint="Call the model once before it is saved.",
        )
    if weights.is_dir():
        assign_arrays(built, read_saved_model(weights).arrays(), weights)
    elif is_archive(weights):
        assign_archive_weights(built, weights)
    else:
        assign_file_weights(built, weights)
    return built


def _cast(value: Any, spec: Any) -> Any:
    is_float = tf.is_tensor(value) and value.dtype.is_floating and spec.dtype.is_floating
    return tf.cast(value, spec.dtype) if is_float else value
