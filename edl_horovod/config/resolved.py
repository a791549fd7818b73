"""A job's resolved configuration as a plain YAML file, which every rank reads without Hydra."""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from edl_horovod.config.checks import check_choice
from edl_horovod.config.fields import REQUIRED, plain_type, settings, type_name, unknown_key
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError, hint_of
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.files.whole_file import write_text

ConfigT = TypeVar("ConfigT")

FILE_NAME = "config.yaml"
"""The name in a job's directory, in a trained model, and in the ConfigMap of a job in a cluster."""


def load(path: Path) -> JobConfig:
    """Read a resolved configuration.

    Raises:
        ConfigError: The file is missing or not YAML, or a key or a value in it does not fit.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(
            f"The configuration cannot be read: {e.strerror}.",
            received=repr(str(path)),
            hint="Give the directory of a job.",
        ) from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not a YAML file: {e}") from e
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values.", received=type(values).__name__)
    try:
        return build(JobConfig, values)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e.problem}", received=e.received, hint=e.hint) from e


def dump(config: JobConfig, path: Path, *, is_private: bool = False) -> None:
    """Write a configuration; a reader sees the old file or the new one, never a partial one.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        write_text(path, to_yaml(config), is_private=is_private)
    except OSError as e:
        raise OutputError(
            f"The configuration cannot be written: {e.strerror}.",
            received=repr(str(path)),
            hint=hint_of(e),
        ) from e


def from_dict(values: dict[str, Any]) -> JobConfig:
    """A job's configuration from the dict that `to_dict` returned.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit.
    """
    return build(JobConfig, values)


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as dicts, lists, text, numbers, booleans and None, without a password."""
    values = dataclasses.asdict(config)
    # Only the URL of a Git repository may have a password.
    return values | {"model_zoo": without_secrets(values["model_zoo"])}


def to_yaml(config: Any) -> str:
    """The configuration as YAML text, in the order of the schema."""
    return str(yaml.safe_dump(to_dict(config), sort_keys=False, width=100))


def build(config_class: type[ConfigT], values: dict[str, Any], *, section: str = "") -> ConfigT:
    """A configuration of any of the schema's classes, with every key and type checked.

    Args:
        config_class: A dataclass of the schema.
        values: Field names to values; nested classes as dicts.
        section: The key of the section that the class describes; empty for the root.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit.
    """
    return _build(config_class, values, f"{section}.".removeprefix("."), config_class)


def wrong_type(key: str, received: str, annotation: Any, *, hint: str = "") -> ConfigError:
    """The error for a value of the wrong type."""
    return ConfigError(
        f"{key} must be of type {type_name(annotation)}.", received=f"{key}={received}", hint=hint
    )


def _build(config_class: type[ConfigT], values: dict[str, Any], prefix: str, root: type) -> ConfigT:
    hints = typing.get_type_hints(config_class)
    for name, value in values.items():
        if name not in hints:
            key = f"{prefix}{name}"
            raise ConfigError(unknown_key(key, root), received={key: value})
    fields = {
        name: _checked_value(values[name], hint, f"{prefix}{name}", root)
        for name, hint in hints.items()
        if name in values
    }
    for setting in settings(config_class):
        if setting.default is REQUIRED and setting.key not in fields:
            key = prefix + setting.key
            raise ConfigError(f"{key} is missing. {setting.meaning} Write {key}=... .")
    return config_class(**fields)


def _checked_value(value: Any, annotation: Any, key: str, root: type) -> Any:
    if dataclasses.is_dataclass(annotation):
        assert isinstance(annotation, type)
        if isinstance(value, dict):
            return _build(annotation, value, f"{key}.", root)
    elif _fits(value, plain_type(annotation)):
        if typing.get_origin(annotation) is typing.Literal:
            check_choice(key, value, typing.get_args(annotation))
        is_float = annotation is float or float in typing.get_args(annotation)
        return float(value) if is_float and type(value) is int else value
    raise wrong_type(key, f"{value!r} ({type(value).__name__})", plain_type(annotation))


def _fits(value: Any, annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) in (dict, list):
        return isinstance(value, typing.get_origin(annotation))
    if annotation is float:
        return type(value) in (int, float)
    return type(value) is annotation
