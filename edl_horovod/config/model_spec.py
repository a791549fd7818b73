"""The `model:` section that describes a model in files: its keys, its paths and its file.

The section has the form that IBM Federated Learning uses. The model's own files are not opened.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from edl_horovod.config.checks import check_choice
from edl_horovod.config.frameworks import model_kinds
from edl_horovod.errors import ConfigError, did_you_mean

log = logging.getLogger(__name__)

SETTINGS = ("model", "model_spec")
"""The settings of a job that hold the section or name its file."""
COMPILE_KEYS = ("compile_model_options", "compiled_options")
"""The two spellings of a model's loss, optimizer and metrics, where they are in one section."""
_FILES = ("model_definition", "model_architecture", "model_weights", "custom_objects")
_FEDERATED = ("is_classification",)
_SECTION = ("name", "path", "spec")
_MODULES = "ibmfl.model."
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_CLASS_IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<symbol>[A-Za-z_]\w*)")
_MODEL_NAME = "model_name"


def check(section: Mapping[str, Any]) -> None:
    """Refuse a section with a wrong key, name, path or spec.

    Args:
        section: The setting `model`, with its `spec` as a mapping or as `module:function`.

    Raises:
        ConfigError: A key is unknown or missing, or a value contradicts another.
    """
    for key in section:
        if key not in _SECTION:
            raise ConfigError(
                f"model has the keys {', '.join(_SECTION)}, and no {key!r}.",
                received={f"model.{key}": section[key]},
                hint=did_you_mean(str(key), _SECTION),
            )
    name, module, spec = (section.get(key, "") for key in _SECTION)
    kinds = model_kinds()
    check_choice("model.name", str(name), kinds)
    kind = kinds[name]
    if module and str(module).removeprefix(_MODULES) != kind.module:
        raise ConfigError(
            f"model.path does not belong to {name}: it has no effect here, and must be"
            f" {_MODULES}{kind.module} or left out.",
            received={"model.path": module},
        )
    if isinstance(spec, Mapping):
        check_spec(name, spec)
    elif not isinstance(spec, str) or not _FUNCTION.fullmatch(spec):
        raise ConfigError(
            "model.spec must be keys and values, a YAML or JSON file that holds them, or"
            " module:function that returns them.",
            received={"model.spec": spec},
            hint="Write model.spec.model_name=... and model.spec.model_definition=... .",
        )


def check_spec(name: str, spec: Mapping[str, Any]) -> None:
    """Refuse a spec with unknown or missing keys, or with keys that contradict each other.

    Args:
        name: One of `model_kinds`.
        spec: Its keys and values.

    Raises:
        ConfigError: A key is unknown or missing, has two spellings, or has a wrong type.
    """
    allowed = (_MODEL_NAME, *_FILES, *model_kinds()[name].keys)
    for key in spec:
        if key not in (*allowed, *_FEDERATED):
            raise ConfigError(
                f"The spec of a {name} has no key {key!r}.",
                received={f"model.spec.{key}": spec[key]},
                hint=f"It has {', '.join(allowed)}.{did_you_mean(str(key), allowed)}",
            )
    for key in (_MODEL_NAME, *_FILES[:3]):
        if not isinstance(spec.get(key, ""), str):
            raise ConfigError(
                f"model.spec.{key} must be text.", received={f"model.spec.{key}": spec[key]}
            )
    definitions = [key for key in _FILES[:2] if spec.get(key)]
    missing = [] if spec.get(_MODEL_NAME) else [_MODEL_NAME]
    if not definitions:
        missing.append("model_definition, or model_architecture")
    if missing:
        raise ConfigError(
            f"The spec of a {name} lacks {' and '.join(missing)}.",
            received=", ".join(f"model.spec.{key}={spec[key]!r}" for key in spec) or "no key",
            hint="model_name is a name of your choice; model_definition is the path of the model's"
            " file.",
        )
    for pair in (definitions, [key for key in COMPILE_KEYS if key in spec]):
        if len(pair) > 1:
            raise ConfigError(
                f"model.spec has both {' and '.join(pair)}, and only one is allowed.",
                received=", ".join(f"model.spec.{key}={spec[key]!r}" for key in pair),
                hint="Leave one out.",
            )
    if spec.get("model_weights") and "model_definition" in definitions:
        raise ConfigError(
            "model.spec has model_definition, which is a whole model, and model_weights.",
            received={"model.spec.model_weights": spec["model_weights"]},
            hint="Leave model_weights out, or give the layers alone as model_architecture.",
        )
    _check_custom_objects(spec.get("custom_objects", ()))


def expand(values: dict[str, Any]) -> None:
    """Replace the files of a model spec in composed settings by their content.

    Paths become absolute.

    Args:
        values: The settings; `model`, `model_spec` and `framework` in it are changed. The model's
            name sets `framework` unless the user did.

    Raises:
        ConfigError: A file cannot be read, or the settings contradict each other.
    """
    if values.get("model_spec"):
        if values.get("model"):
            raise ConfigError(
                "The settings model and model_spec both describe the model.",
                received={"model_spec": values["model_spec"], "model": values["model"]},
                hint="Leave one out.",
            )
        file = Path(os.path.expanduser(values["model_spec"])).absolute()
        values["model"] = read_section(file)
        values["model_spec"] = ""
    section = values.get("model")
    if not section:
        return
    if values.get("model_def"):
        raise ConfigError(
            "model_def names a model of the model zoo, and a model spec describes another.",
            received={"model_def": values["model_def"], "model.name": section.get("name", "")},
            hint="Leave one out.",
        )
    values["model"] = section = with_spec(section, Path.cwd())
    check(section)
    if not values.get("framework"):
        values["framework"] = model_kinds()[section["name"]].framework


def read_section(file: Path) -> dict[str, Any]:
    """The `model:` section of a file, its spec as a mapping with absolute paths or a function.

    One warning names the other sections, which only a federation uses.

    Raises:
        ConfigError: The file cannot be read, or has no such section.
    """
    content = read_mapping(file, "model_spec")
    section = content.pop("model", None)
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{file} has no section `model:` with name and spec.",
            received={"model_spec": file},
            hint=f"At its top it has {', '.join(map(str, content)) or 'nothing'}.",
        )
    if content:
        log.warning(
            "%s: these sections are for a federation and have no effect here: %s. Set the training"
            " by train.epochs, train.batch_size, train.learning_rate and data",
            file,
            ", ".join(sorted(map(str, content))),
        )
    return with_spec(dict(section), file.parent)


def map_paths(spec: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """A spec with all of its paths changed.

    Args:
        spec: The checked spec.
        change: Takes the key of a path and the path; returns the new path.
    """
    changed_spec = {key: value for key, value in spec.items() if key not in _FEDERATED}
    for key in _FILES[:3]:
        if text := changed_spec.get(key):
            class_in_file = _CLASS_IN_FILE.fullmatch(text)
            changed_spec[key] = (
                f"{change(key, class_in_file['file'])}:{class_in_file['symbol']}"
                if class_in_file
                else change(key, text)
            )
    if "custom_objects" in changed_spec:
        objects = changed_spec["custom_objects"]
        changed_spec["custom_objects"] = _map_entries("custom_objects", objects, change)
    for key in COMPILE_KEYS:
        if isinstance(options := changed_spec.get(key), Mapping):
            changed_spec[key] = {
                name: _map_entries(f"{key}.{name}", value, change)
                for name, value in options.items()
            }
    return changed_spec


def paths_in(section: Mapping[str, Any]) -> list[str]:
    """The paths that a section names; empty where a function will return the spec."""
    paths: list[str] = []

    def note(_key: str, path: str) -> str:
        paths.append(path)
        return path

    spec = section.get("spec")
    if isinstance(spec, Mapping):
        map_paths(spec, note)
    return paths


def section_of(framework: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The section for a spec, with the first name that stands for the framework."""
    kinds = model_kinds().items()
    name, kind = next((name, kind) for name, kind in kinds if kind.framework == framework)
    return {"name": name, "path": f"{_MODULES}{kind.module}", "spec": dict(spec)}


def with_spec(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section with its spec read, and its paths made absolute from a folder.

    Raises:
        ConfigError: The file of the spec cannot be read, or the spec has a wrong key.
    """
    spec = section.get("spec")
    if isinstance(spec, str) and spec and not _FUNCTION.fullmatch(spec):
        file = folder / os.path.expanduser(spec)
        spec, folder = read_mapping(file, "model.spec"), file.parent
    if not isinstance(spec, Mapping):
        return dict(section)
    if section.get("name") in model_kinds():
        check_spec(section["name"], spec)
        if ignored := [key for key in spec if key in _FEDERATED]:
            log.warning("model.spec: no effect here: %s", ", ".join(ignored))
        spec = map_paths(spec, lambda _, path: os.path.abspath(folder / os.path.expanduser(path)))
    return {**section, "spec": dict(spec)}


def read_mapping(file: Path, key: str) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file, which the setting or flag `key` names.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except OSError as e:
        raise ConfigError(
            f"The file of {key} cannot be read: {e.strerror}.",
            received={key: file},
            hint="Give the path of a YAML or JSON file.",
        ) from e
    except (ValueError, yaml.YAMLError) as e:
        raise ConfigError(
            f"The file of {key} is neither YAML nor JSON: {' '.join(str(e).split())}.",
            received={key: file},
        ) from e
    if not isinstance(content, dict):
        raise ConfigError(
            f"The file of {key} must hold keys and values.",
            received=f"{key}={str(file)!r}, which holds {type(content).__name__}",
        )
    return content


def _check_custom_objects(objects: Any) -> None:
    is_list = isinstance(objects, list | tuple)
    for entry in objects if is_list else [objects]:
        if not is_list or not isinstance(entry, Mapping) or set(entry) != {"key", "value", "path"}:
            raise ConfigError(
                "model.spec.custom_objects must be a list of {key, value, path}: the name in the"
                " model's file, the name in a Python file, and that file.",
                received={"model.spec.custom_objects": objects},
            )


def _map_entries(key: str, value: Any, change: Callable[[str, str], str]) -> Any:
    """A list or a single value, with the `path` of each mapping changed."""
    if isinstance(value, list | tuple):
        return [_map_entries(key, entry, change) for entry in value]
    if isinstance(value, Mapping) and value.get("path"):
        return {**value, "path": change(key, str(value["path"]))}
    return value
