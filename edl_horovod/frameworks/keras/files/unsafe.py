"""Find code and foreign classes in model configurations."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.definition import Definition, named_parts

_PROGRAMS = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "__lambda__"}
"""Classes whose configuration is code or refers to files with code."""
_OVERRIDING_OPTION = {
    "loss": "loss",
    "loss_weights": "loss",
    "metrics": "metrics",
    "optimizer": "optimizer",
    "optimizer_config": "optimizer",
    "weighted_metrics": "metrics",
}
"""For each compile argument in a file, the option that replaces it."""
_PART_MODULES = {
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
"""Modules of Keras that only contain parts of models; others read files and run programs."""
_TOP_LEVEL_PARTS = frozenset(
    {"DTypePolicy", "DTypePolicyMap", "FloatDTypePolicy", "Functional", "Model", "Sequential"}
)
"""Names in Keras' top-level module that are parts of models."""
_KERAS_2_MODULES = frozenset({"engine", "mixed_precision", "feature_column"})
"""Further modules in files of Keras 2; they are never imported."""


@dataclass(frozen=True)
class Finding:
    """A part of a model's files that is not accepted."""

    description: str
    """The part and its location, such as `Lambda layer 'scale' of model.h5`."""
    is_program: bool
    """Whether the part is code, which is accepted from a trusted author."""


def all_findings(definition: Definition) -> list[Finding]:
    """Find unacceptable parts in a model's files, except unused compile arguments."""
    file, options = definition.file.name, definition.source.compile_options
    custom = [custom_object.key for custom_object in definition.source.custom_objects]
    used = {
        key: value
        for key, value in definition.compiled.items()
        if options.get(_OVERRIDING_OPTION.get(key, "")) is None
    }
    findings = [
        finding
        for part in (definition.config, used)
        for finding in _config_findings(part, file, custom=custom)
    ]
    if definition.is_program:
        findings.append(Finding(f"{definition.config['class_name']}, the program of {file}", True))
    return findings


def _config_findings(config: Any, file: str, *, custom: Collection[str]) -> list[Finding]:
    """Inspect all parts of a configuration at any depth without creating any object.

    Args:
        config: The parsed JSON.
        file: Name of the file in the findings.
        custom: Names for which the user provides objects.
    """
    findings: list[Finding] = []
    for part, name in named_parts(config):
        findings += _inspect(part, f"{name!r} of {file}" if name else file, custom)
    return list(dict.fromkeys(findings))


def reject_findings(findings: Collection[Finding], *, is_trusted: bool) -> None:
    """Reject foreign classes, and code from an untrusted author.

    Raises:
        UserCodeError: A finding is not acceptable.
    """
    foreign = [finding.description for finding in findings if not finding.is_program]
    if foreign:
        raise UserCodeError(
            "The model refers to classes or functions that are not parts of Keras models.",
            received="; ".join(foreign),
            hint="If they are yours, provide them in custom_objects (key, value, path); else do not"
            " use the file.",
        )
    programs = [finding.description for finding in findings if finding.is_program]
    if programs and not is_trusted:
        raise UserCodeError(
            "The model contains code that would run here.",
            received="; ".join(programs),
            hint="Set trust=model if you trust its author, or save the model without the code.",
        )


def _inspect(value: dict[str, Any], location: str, custom: Collection[str]) -> Iterator[Finding]:
    class_name = value.get("class_name")
    if isinstance(value.get("vocabulary"), str):
        yield Finding(f"the vocabulary file {value['vocabulary']!r} of layer {location}", True)
    if not isinstance(class_name, str):
        return
    name = value.get("config") if class_name == "function" else class_name
    if class_name in _PROGRAMS:
        description = "A function as bytes in" if class_name == "__lambda__" else class_name
        yield Finding(f"{description} layer {location}", True)
    elif any(
        key in custom or keras.saving.get_registered_object(key)
        for key in (str(name), str(value.get("registered_name")))
    ):
        return  # The user provides it, or this package has registered it.
    elif "module" in value and value["module"] is None:
        yield Finding(f"{name} in layer {location}", False)
    elif not _is_keras_part(value.get("module"), str(name), is_function=class_name == "function"):
        yield Finding(f"{value['module']}.{name} in layer {location}", False)


def _is_keras_part(module: Any, name: str, *, is_function: bool) -> bool:
    """Whether a configuration's module and name refer to a part of Keras models."""
    if module is None:  # Keras 2 did not save modules.
        return True
    if module == "builtins":  # Keras saves its functions under this module.
        return is_function
    first, *rest = str(module).split(".")
    if rest[:1] == ["src"]:
        rest = rest[1:]
    if first not in ("keras", "tf_keras"):
        return False
    if not rest or rest[0] == "models":
        return name in _TOP_LEVEL_PARTS
    return rest[0] in _PART_MODULES | _KERAS_2_MODULES
