"""Make a Keras 3 model of what was read from files, with its weights."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.definition import Definition, is_archive
from edl_horovod.frameworks.keras.files.older import Older, known_layers, unknown_layer
from edl_horovod.frameworks.keras.files.program import SavedProgram
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.frameworks.keras.files.weights import (
    put_archive_weights,
    put_arrays,
    put_weights,
)
from edl_horovod.models.calling import user_code
from edl_horovod.models.file_model import FileModel

__all__ = ["built", "require_trainable", "todays_config"]


def todays_config(definition: Definition, custom: Mapping[str, Any]) -> dict[str, Any]:
    """A model's configuration as today's Keras writes it.

    Raises:
        UserCodeError: Keras 3 lacks a layer, or a setting of one.
    """
    config = definition.config
    if "module" in config and not definition.is_keras_2:
        _require_layers(config, definition.file.name, custom)
        return config
    older = Older(definition.file.name, is_keras_2=definition.is_keras_2, custom=tuple(custom))
    return older.layer(config)


def built(model: FileModel, definition: Definition, custom: Mapping[str, Any]) -> keras.Model:
    """The model of the files, not compiled.

    Args:
        model: Where the files are.
        definition: What they say; it was looked through for what is unsafe.
        custom: The user's objects by the names in the files.

    Raises:
        UserCodeError: Keras cannot make it, or the weights do not fit.
    """
    path = definition.file
    with user_code(f"Making the model of {path}", root=path.parent):
        made = _made(model, definition, custom)
    if not isinstance(made, keras.Model):
        raise UserCodeError(
            f"{path} describes no model.",
            received=type(made).__name__,
            cure="Save a whole model.",
        )
    require_trainable(made, path)
    return made


def require_trainable(made: keras.Model, path: Path) -> None:
    """Require something to train.

    Raises:
        UserCodeError: The model has no weights, or all of its layers are frozen.
    """
    if not made.trainable_weights:
        raise UserCodeError(
            f"The model of {path} has nothing to train.",
            received=f"{len(made.weights)} weights, none of them trainable",
            cure="Save it with layers whose `trainable` is true.",
        )


def _require_layers(config: Any, file: str, custom: Mapping[str, Any]) -> None:
    """Require that Keras has all that today's configuration takes for its layers."""
    known = {*known_layers(), *custom}
    todo = [config]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            kind = value.get("class_name")
            if value.get("module") == "keras.layers" and kind not in known:
                settings = value.get("config")
                name = settings.get("name", "") if isinstance(settings, dict) else ""
                raise unknown_layer(str(kind), str(name), file)
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def _made(model: FileModel, definition: Definition, custom: Mapping[str, Any]) -> Any:
    path, is_todays = definition.file, not definition.is_keras_2
    if is_archive(path) and is_todays:
        # Keras reads what layers keep besides weights, such as vocabularies, in this way alone.
        return keras.saving.load_model(
            path, custom_objects=dict(custom), compile=False, safe_mode=not model.is_trusted
        )
    if definition.is_program:
        return SavedProgram(path, definition.config["config"]["name"])
    config = todays_config(definition, custom)
    made = keras.saving.deserialize_keras_object(
        copy.deepcopy(config),  # Keras takes it apart.
        custom_objects=dict(custom),
        safe_mode=not model.is_trusted,
    )
    weights = model.weights or model.definition
    if weights is None:
        return made
    if not made.built:
        raise UserCodeError(
            f"{path} does not say the shape of the model's input, so it has no weights yet.",
            received=f"the model {made.name!r}",
            cure="Save the model after it was called once.",
        )
    if weights.is_dir():
        put_arrays(made, read_saved_model(weights).arrays(), weights)
    elif is_archive(weights):
        put_archive_weights(made, weights)
    else:
        put_weights(made, weights)
    return made
