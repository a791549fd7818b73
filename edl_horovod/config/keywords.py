"""Settings of a Python call: values are used as they are, and text is read as in a command."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edl_horovod.config.fields import FILE_LISTS, dict_key_of, settings
from edl_horovod.errors import ConfigError


def from_keywords(
    keywords: Mapping[str, Any], config_class: type
) -> tuple[list[str], dict[str, Any]]:
    """Split keyword arguments into overrides, read as in a command, and values by key.

    Args:
        keywords: Keys, with dots or as nested sections, to values.
        config_class: The root of the settings.

    Raises:
        ConfigError: A value is of a type that no setting has.
    """
    annotations = {setting.key: setting.annotation for setting in settings(config_class)}
    overrides: list[str] = []
    values: dict[str, Any] = {}
    for key, value in _flat(keywords, "", annotations):
        in_dict = dict_key_of(key, annotations)
        if annotations.get(key) is str:
            values[key] = _text(key, value)
        elif in_dict and (in_dict != key or not isinstance(value, str)):
            values[key] = value if in_dict == "params" else _plain(key, value)
        elif key not in annotations or isinstance(value, str | os.PathLike):
            overrides.append(f"{key}={value}")
        else:
            values[key] = _plain(key, value)
    return overrides, values


def _flat(
    keywords: Mapping[str, Any], prefix: str, annotations: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The keys, with dots, and values of nested sections; settings of type dict stay dicts."""
    for name, value in keywords.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and not dict_key_of(key, annotations):
            yield from _flat(value, f"{key}.", annotations)
        else:
            yield key, value


def _text(key: str, value: Any) -> str:
    if key in FILE_LISTS and isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_file_in_list(key, file) for file in value)
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, int | float):
        return str(value)
    raise ConfigError(
        f"{key} must be text.",
        received=f"{key}={value!r} ({type(value).__name__})",
        hint="Give a string or a path.",
    )


def _file_in_list(key: str, file: Any) -> str:
    path = _text(key, file)
    if "," in path:
        raise ConfigError(
            "A file in a list cannot have a comma in its name.",
            received=f"{key}=[..., {path!r}]",
            hint="Name it with a glob, with ? in place of the comma.",
        )
    return path


def _plain(key: str, value: Any) -> Any:
    """The value converted to types that YAML has."""
    if isinstance(value, Mapping):
        return {name: _plain(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return float(value)
    raise ConfigError(
        f"{key} must be text, a number, True, False, None, a list or a dict.",
        received=f"{key}={value!r} ({type(value).__name__})",
        hint="Convert the value to one of these.",
    )
