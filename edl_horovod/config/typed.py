"""Settings as Python values, turned into what a user would have typed in a command."""

import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edl_horovod.config import params as params_text
from edl_horovod.config.fields import settings as settings_of
from edl_horovod.errors import ConfigError

__all__ = ["typed_settings", "typed_values"]

_FILE_LISTS = ("data", "validation_data")


def typed_settings(settings: Mapping[str, Any], config_class: type) -> list[str]:
    """The settings as a user would have typed them in a command.

    Args:
        settings: Keys, with dots or as sections within sections, to values.
        config_class: The root of the settings.

    Raises:
        ConfigError: A value is of a type that no setting has.
    """
    texts = _text_keys(config_class)
    kinds = {
        setting.key: typing.get_origin(setting.annotation) for setting in settings_of(config_class)
    }
    return [
        f"{key}={_literal(key, value)}"
        if kinds.get(key) in (dict, list) and isinstance(value, Mapping | list) and key != "params"
        else f"{key}={_typed(key, value, key in texts)}"
        for key, value in _flat(settings, "", {key for key in kinds if kinds[key] is dict})
    ]


def typed_values(key: str, values: Sequence[Any], config_class: type) -> list[str]:
    """The values that a sweep gives one setting, as a user would have typed them.

    Raises:
        ConfigError: They are no list, or one is of a type that no setting has.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(
            f"A sweep takes a list of values for each key. Received: {key}={values!r}."
        )
    is_text = key in _text_keys(config_class)
    return [_typed(key, value, is_text) for value in values]


def _text_keys(config_class: type) -> set[str]:
    return {setting.key for setting in settings_of(config_class) if setting.annotation is str}


def _flat(settings: Mapping[str, Any], prefix: str, dicts: set[str]) -> Iterator[tuple[str, Any]]:
    """Keys and values; sections are opened, values that are dicts themselves are not."""
    for name, value in settings.items():
        key = f"{prefix}{name}"
        is_section = key not in dicts and key.partition(".")[0] != "params"
        if isinstance(value, Mapping) and is_section:
            yield from _flat(value, f"{key}.", dicts)
        else:
            yield key, value


def _typed(key: str, value: Any, is_text: bool) -> str:
    if key == "params" and isinstance(value, Mapping):
        return params_text.format(dict(value))
    if key.startswith("params."):
        return params_text.format({key.rpartition(".")[2]: value}).partition("=")[2]
    if key in _FILE_LISTS and isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_one_file(key, file) for file in value)
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, int | float):
        return str(value)
    if value is None and not is_text:
        return "null"
    raise ConfigError(
        f"{key} must be {'text' if is_text else 'text, a number, True, False, None or a dict'}. "
        f"Received: {key}={value!r} ({type(value).__name__})."
    )


def _literal(key: str, value: Any) -> str:
    """A dict or a list as Hydra's grammar has it; text always in quotes, so that it stays text."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_literal(key, item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(key, item) for item in value)}]"
    if isinstance(value, str):
        # A backslash is itself, but for those before a quote.
        quoted = re.sub(r"(\\*)('|$)", lambda at: at[1] * 2 + ("\\'" if at[2] else ""), value)
        return f"'{quoted}'"
    return "null" if value is None else _typed(key, value, False)


def _one_file(key: str, file: Any) -> str:
    path = _typed(key, file, True)
    if "," in path:
        raise ConfigError(
            f"A file in a list cannot have a comma in its name. Received: {key}=[..., {path!r}]. "
            "Name it with a glob: ? stands for the comma."
        )
    return path
