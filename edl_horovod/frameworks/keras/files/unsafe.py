"""What of a model's configuration would run code, or names what is not a part of a model."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.definition import Definition
from edl_horovod.models.file_model import FileModel

__all__ = ["Finding", "all_findings", "findings", "refuse"]

_PROGRAMS = frozenset(
    {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "__lambda__"}
)
"""Classes whose configuration is code, or names files that hold some."""
_OPTION_OF = {
    "loss": "loss",
    "loss_weights": "loss",
    "metrics": "metrics",
    "optimizer": "optimizer",
    "optimizer_config": "optimizer",
    "weighted_metrics": "metrics",
}
"""The option that takes the place of a part of what a file was compiled with."""
_MODULES = frozenset(
    {
        "activations",
        "constraints",
        "dtype_policies",
        "initializers",
        "layers",
        "losses",
        "metrics",
        "models",
        "ops",
        "optimizers",
        "quantizers",
        "random",
        "regularizers",
    }
)
"""Those of Keras that hold parts of models; others read files and run programs."""
_OF_KERAS = frozenset(
    {"DTypePolicy", "DTypePolicyMap", "FloatDTypePolicy", "Functional", "Model", "Sequential"}
)
"""Names of Keras itself that are parts of models."""
_UNTIL_KERAS_3 = frozenset({"engine", "mixed_precision", "feature_column"})
"""Modules of the classes that Keras 2 wrote into its files; none of them is imported here."""


@dataclass(frozen=True)
class Finding:
    """Something in a model's files that is not let through."""

    what: str
    """What it is and where: `Lambda layer 'scale' of model.h5`."""
    is_program: bool
    """Whether it is code that trust would let run; else trust changes nothing."""


def all_findings(definition: Definition, model: FileModel) -> list[Finding]:
    """What was found in a model's files, but for what they were compiled with and is not used.

    Args:
        definition: What was read of them.
        model: Its options take the place of some, and it brings objects for some names.
    """
    file, options = definition.file.name, model.compile_options
    custom = [each.key for each in model.custom_objects]
    used = {
        key: value
        for key, value in (definition.compiled or {}).items()
        if options.get(_OPTION_OF.get(key, "")) is None
    }
    found = [
        each for part in (definition.config, used) for each in findings(part, file, custom=custom)
    ]
    if definition.is_program:
        found.append(Finding(f"{definition.config['class_name']}, the program of {file}", True))
    return found


def findings(config: Any, file: str, *, custom: Collection[str]) -> list[Finding]:
    """Look at each part of a configuration, at any depth; nothing of it is made.

    Args:
        config: As JSON gives it.
        file: Its name, for the findings.
        custom: Names that the user brings objects for.
    """
    found: list[Finding] = []
    todo: list[tuple[Any, str]] = [(config, "")]
    while todo:
        value, name = todo.pop()
        if isinstance(value, dict):
            inner = value.get("config")
            own = inner.get("name") if isinstance(inner, dict) else None
            name = str(own or value.get("name") or name)
            found += _of(value, f"{name!r} of {file}" if name else file, custom)
            todo += [(each, name) for each in value.values()]
        elif isinstance(value, list | tuple):
            todo += [(each, name) for each in value]
    return list(dict.fromkeys(found))


def refuse(found: Collection[Finding], *, is_trusted: bool) -> None:
    """Refuse what was found.

    Raises:
        UserCodeError: Some of it is not let through.
    """
    foreign = [each.what for each in found if not each.is_program]
    if foreign:
        raise UserCodeError(
            "The model names what is no part of Keras' models.",
            received="; ".join(foreign),
            cure="If it is a class or function of yours, give it as custom_objects (key, value,"
            " path); else do not use the file.",
        )
    programs = [each.what for each in found if each.is_program]
    if programs and not is_trusted:
        raise UserCodeError(
            "The model holds code, which would run here.",
            received="; ".join(programs),
            cure="Set trust=model if you trust whoever wrote it; or write the model without it.",
        )


def _of(value: dict[str, Any], place: str, custom: Collection[str]) -> Iterator[Finding]:
    kind = value.get("class_name")
    if isinstance(value.get("vocabulary"), str):
        yield Finding(f"the vocabulary file {value['vocabulary']!r} of layer {place}", True)
    if not isinstance(kind, str):
        return
    name = value.get("config") if kind == "function" else kind
    if kind in _PROGRAMS:
        what = "A function as bytes in" if kind == "__lambda__" else kind
        yield Finding(f"{what} layer {place}", True)
    elif _is_brought({str(name), str(value.get("registered_name"))}, custom):
        return
    elif "module" in value and value["module"] is None:
        yield Finding(f"{name} in layer {place}", False)
    elif not _is_of_keras(value.get("module"), str(name), is_function=kind == "function"):
        yield Finding(f"{value['module']}.{name} in layer {place}", False)


def _is_brought(names: set[str], custom: Collection[str]) -> bool:
    """Whether the user brings one of these names, or it is registered, as are those of ours."""
    return any(name in custom or keras.saving.get_registered_object(name) for name in names)


def _is_of_keras(module: Any, name: str, *, is_function: bool) -> bool:
    """Whether a module that a configuration names is one that holds parts of models."""
    if module is None:  # Keras 2 named none.
        return True
    if module == "builtins":  # So Keras writes the names of its own functions.
        return is_function
    first, *rest = str(module).split(".")
    if rest[:1] == ["src"]:
        rest = rest[1:]
    if first not in ("keras", "tf_keras"):
        return False
    if not rest or rest[0] == "models":
        return name in _OF_KERAS
    return rest[0] in _MODULES | _UNTIL_KERAS_3
