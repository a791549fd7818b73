"""Settings as a user typed them, `key=value`: read, and sorted by how their values are read.

Text settings (paths, globs, names) are used verbatim, so a path needs quotes only for the shell. A
value in the quotes of Hydra's grammar is the text within the quotes. Hydra parses other settings.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from edl_horovod.config import params as params_text
from edl_horovod.config.conf_files import conf_dir
from edl_horovod.config.fields import SET_BY_US, dict_key_of, is_within, settings, unknown_key
from edl_horovod.errors import ConfigError, did_you_mean

_INTERPOLATION = re.compile(r"(?P<slashes>\\*)\$\{(?=(?:(?P<name>[\w.]+)(?P<after>[:}]))?)")


@dataclass(frozen=True)
class Override:
    """One `key=value` as it was typed."""

    key: str
    value: str
    typed: str

    @property
    def prefix(self) -> str:
        """The `+` or `++` that it was typed with."""
        return self.typed[: len(self.typed) - len(self.typed.lstrip("+"))]


def split(typed: str) -> Override:
    """The key and the value of a setting as it was typed.

    A `+` or `++`, which Hydra requires for new keys, has no effect, because every key is known.

    Raises:
        ConfigError: The text is not `key=value`.
    """
    key, equals, value = typed.partition("=")
    if key.startswith("~"):
        raise ConfigError(
            "A setting cannot be removed.", received=typed, hint=f"Give it a value: {key[1:]}=... ."
        )
    key = key.lstrip("+")
    if not equals or not key:
        is_file = key.endswith((".yaml", ".yml"))
        hint = " A file of settings is given by --config-dir and --config-name." if is_file else ""
        raise ConfigError(
            "A setting is written key=value, with no space beside the =.",
            received=repr(typed),
            hint=hint,
        )
    return Override(key, value, typed)


def checked_for_hydra(override: Override) -> str:
    """The setting in the form that Hydra reads.

    Raises:
        ConfigError: Hydra's grammar does not allow the value, or it is several values.
    """
    text = f"{override.key}={override.value}"
    hydra_value(text, override)
    return text


def hydra_value(text: str, override: Override) -> Any:
    """The value that Hydra reads in `key=value`.

    Args:
        text: The setting in Hydra's grammar.
        override: The setting as the user typed it, for errors.

    Raises:
        ConfigError: Hydra's grammar does not allow the value, or it is several values.
    """
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as e:
        raise unreadable(override) from e
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{override.key} takes one value.",
            received=override.typed,
            hint=(
                f"A list is written {override.key}=[a,b], text with commas"
                f" {override.key}=\"'a,b'\". To train with each value in turn, use edl train -m."
            ),
        )
    return parsed.value()


def unquoted(value: str) -> str:
    """The text within the quotes of Hydra's grammar, or the value where it has none."""
    if len(value) < 2 or value[0] not in "'\"" or value[-1] != value[0]:
        return value
    try:
        parsed = OverridesParser.create().parse_override(f"x={value}")
    except HydraException:
        return value
    return value if parsed.is_sweep_override() else str(parsed.value())


def escaped(value: Any, is_reference: Callable[[str, bool], bool] = lambda *_: False) -> Any:
    """A value in which `${...}` is escaped, so that OmegaConf takes it as text.

    Args:
        value: Text, or a list or a dict with text in it; anything else stays as it is.
        is_reference: Takes a name, and whether it is a resolver (`${name:...}`); returns whether
            it refers to another value and must not be escaped.
    """
    if isinstance(value, Mapping):
        return {name: escaped(item, is_reference) for name, item in value.items()}
    if isinstance(value, list):
        return [escaped(item, is_reference) for item in value]
    if not isinstance(value, str):
        return value

    def as_text(match: re.Match[str]) -> str:
        if match["name"] and is_reference(match["name"], match["after"] == ":"):
            return match[0]
        return match["slashes"] * 2 + r"\${"

    return _INTERPOLATION.sub(as_text, value)


def param_of(override: Override) -> Any:
    """The value of `params="a=1, b=2"`, `params={a: 1}` or `params.a=1`."""
    if override.key == "params" and not override.value.startswith("{"):
        return params_text.parse(unquoted(override.value))
    try:
        return params_text.literal(override.value)
    except ConfigError:
        return hydra_value(f"x={override.value}", override)


def unreadable(override: Override) -> ConfigError:
    """The error for a value that Hydra's grammar does not allow."""
    return ConfigError(
        f"The value of {override.key} cannot be read.",
        received=override.typed,
        hint="Write a number, true, false, null, 'text', a [list] or {key: value}.",
    )


@dataclass(frozen=True)
class SortedSettings:
    """The settings of one composition, sorted by how their values are read."""

    for_hydra: list[str] = field(default_factory=list)
    """Overrides that Hydra parses."""
    values: dict[str, Any] = field(default_factory=dict)
    """Keys with dots to values; OmegaConf resolves the interpolations that are left in them."""
    typed: dict[str, str] = field(default_factory=dict)
    """Keys to the text that the user typed, for errors."""
    passed: set[str] = field(default_factory=set)
    """Those of these keys whose values a program passed."""
    choices: list[str] = field(default_factory=list)
    """Choices of files, as the user typed them."""

    def typed_as(self, key: str) -> str:
        """The text that set a key, its section or the dict around it; empty if none was typed."""
        names = self._names(key)
        return self.typed[names[-1]] if names else ""

    def source_of(self, key: str) -> str:
        """Who set a key, `command line` or `program`; empty if it was not typed."""
        names = self._names(key)
        return ("program" if names[-1] in self.passed else "command line") if names else ""

    def _names(self, key: str) -> list[str]:
        return [name for name in self.typed if is_within(key, name) or is_within(name, key)]


class Sorter:
    """Decides how a setting is read, and knows which settings exist."""

    def __init__(self, config_class: type, *, name: str, loader: ConfigLoader) -> None:
        self._class = config_class
        self._name = name
        self._loader = loader
        self.annotations = {setting.key: setting.annotation for setting in settings(config_class)}
        self.sections = {key.partition(".")[0] for key in self.annotations if "." in key}

    def sort(self, overrides: Sequence[str], values: Mapping[str, Any]) -> SortedSettings:
        """Sort settings by how they are read.

        Raises:
            ConfigError: Settings are unknown or malformed; the message names all of them.
        """
        sorted_settings = SortedSettings()
        params: dict[str, Any] = {}
        errors: list[ConfigError] = []
        steps = [
            *(functools.partial(self._sort_text, text) for text in overrides),
            *(functools.partial(self._sort_value, key, value) for key, value in values.items()),
        ]
        for step in steps:
            try:
                step(sorted_settings, params)
            except ConfigError as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            lines = "".join(f"\n  {error}" for error in errors)
            raise ConfigError(f"{len(errors)} settings cannot be taken:{lines}")
        if params:
            params_text.check(params)
            sorted_settings.values["params"] = params
        return sorted_settings

    def _sort_value(
        self, key: str, value: Any, sorted_settings: SortedSettings, params: dict[str, Any]
    ) -> None:
        typed = sorted_settings.typed[key] = f"{key}={value}"
        sorted_settings.passed.add(key)
        if dict_key_of(key, self.annotations) == "params":
            params_text.put(params, key, escaped(value), received=typed)
        elif key in self.annotations or dict_key_of(key, self.annotations):
            sorted_settings.values[key] = escaped(value)
        else:
            raise self.unknown(key, typed)

    def _sort_text(
        self, text: str, sorted_settings: SortedSettings, params: dict[str, Any]
    ) -> None:
        override = split(text)
        key, value = override.key, override.value
        in_dict = dict_key_of(key, self.annotations)
        is_text = not value.startswith("{")
        # The user may have a group of this name: +model=resnet takes model/resnet.yaml.
        is_group = in_dict == key and key != "params" and is_text and bool(self.choices(key))
        if is_group:
            in_dict = ""
        is_choice = is_group or (not in_dict and key not in self.annotations and is_text)
        if is_choice:
            sorted_settings.choices.append(override.typed)
        else:
            sorted_settings.typed[key] = override.typed
        if in_dict == "params":
            param = escaped(param_of(override), self._is_reference)
            params_text.put(params, key, param, received=override.typed)
        elif in_dict:
            sorted_settings.for_hydra.append(f"++{checked_for_hydra(override)}")
        elif is_group or key in SET_BY_US or key not in self.annotations:
            sorted_settings.for_hydra.append(self._group_choice(override))
        elif self.annotations[key] is str:
            sorted_settings.values[key] = escaped(unquoted(value), self._is_reference)
        else:
            sorted_settings.for_hydra.append(checked_for_hydra(override))

    def _group_choice(self, override: Override) -> str:
        """The override for Hydra that chooses a file of a group, or sets several keys of it."""
        group = override.key.partition("@")[0]
        is_own_section = group in self.sections
        choices = self.choices(group)
        if not is_own_section and (not choices or (conf_dir() / group).is_dir()):
            raise self.unknown(override.key, override.typed)
        if is_own_section and override.value.startswith("{"):
            return checked_for_hydra(override)
        if override.value not in (*choices, "null"):
            keys = f", or set one of its keys: {group}.key=value" if is_own_section else ""
            raise ConfigError(
                f"{group} must be one of {', '.join(choices)}{keys}.",
                received=override.typed,
                hint=did_you_mean(override.value, choices),
            )
        # Our own groups are in the list of defaults already, so a + would change nothing.
        prefix = "" if is_own_section else override.prefix
        return f"{prefix}{override.key}={override.value}"

    def choices(self, group: str) -> list[str]:
        """The files of a group; empty for Hydra's own groups."""
        if group.partition("/")[0].partition(".")[0] == "hydra":
            return []
        return list(self._loader.get_group_options(group, config_name=self._name))

    def unknown(self, key: str, received: str, *, location: str = "") -> ConfigError:
        """The error for an unknown key, with the keys that exist."""
        if refusal := getattr(self._class, "NOT_TAKEN", {}).get(key.partition(".")[0]):
            return ConfigError(refusal[0], received=received, hint=f"{location} {refusal[1]}")
        user_groups = [
            group
            for group in self._loader.list_groups("")
            if group != "hydra" and not (conf_dir() / group).is_dir()
        ]
        groups = ""
        if user_groups:
            listed = ", ".join(user_groups)
            groups = f" Groups of --config-dir: {listed}.{did_you_mean(key, user_groups)}"
        elif received.startswith("+"):
            groups = " Your own groups are in the directory that --config-dir names."
        reason = unknown_key(key, self._class, hidden=SET_BY_US)
        return ConfigError(f"{reason}{groups}", received=received, hint=location)

    def _is_reference(self, name: str, is_call: bool) -> bool:
        """Whether `${name}` or `${name:...}` in a text means another value."""
        if is_call:
            return bool(OmegaConf.has_resolver(name))
        return name in self.annotations or bool(dict_key_of(name, self.annotations))
