"""The settings of one composition, sorted by who reads them: Hydra, or us, as they are.

Text settings (paths, globs, names) are used verbatim, so a path needs no quotes but those for the
shell; where their value is a string in the quotes of Hydra's grammar, they get what stands within.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import OmegaConf

from edl_horovod.config import model_spec
from edl_horovod.config import params as params_text
from edl_horovod.config.conf_files import conf_dir
from edl_horovod.config.fields import SET_BY_US, dict_key_of, is_within, settings, unknown_key
from edl_horovod.config.overrides import (
    Override,
    checked_for_hydra,
    escaped,
    gathered_errors,
    param_of,
    split,
    unquoted,
)
from edl_horovod.errors import ConfigError, did_you_mean

__all__ = ["Given", "Sorter"]


@dataclass(frozen=True)
class Given:
    """The settings of one composition, sorted by who reads them."""

    for_hydra: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """Keys with dots to values; what OmegaConf would resolve in them is meant so."""
    typed: dict[str, str] = field(default_factory=dict)
    """Keys to how they were given, for errors."""
    choices: list[str] = field(default_factory=list)
    """Choices of files, as they were given."""

    def typed_as(self, key: str) -> str:
        """How a user typed a key, or the section or the dict around it; else empty."""
        names = [name for name in self.typed if is_within(key, name) or is_within(name, key)]
        return self.typed[names[-1]] if names else ""


class Sorter:
    """Decides who reads a setting, and knows what can be set."""

    def __init__(self, config_class: type, *, name: str, loader: ConfigLoader) -> None:
        self._class = config_class
        self._name = name
        self._loader = loader
        self.annotations = {each.key: each.annotation for each in settings(config_class)}
        self.sections = {key.partition(".")[0] for key in self.annotations if "." in key}

    def sort(self, overrides: Sequence[str], values: Mapping[str, Any]) -> Given:
        """Decide who reads which setting.

        Raises:
            ConfigError: Some are unknown or malformed; all of them are named.
        """
        given = Given()
        params: dict[str, Any] = {}
        with gathered_errors() as gathering:
            for text in overrides:
                with gathering():
                    override = split(text)
                    self._sort_one(override, given, params)
            for key, value in values.items():
                with gathering():
                    given.typed[key] = f"{key}={value}"
                    if dict_key_of(key, self.annotations) == "params":
                        params_text.put(params, key, escaped(value), received=given.typed[key])
                    elif key in self.annotations or dict_key_of(key, self.annotations):
                        given.values[key] = escaped(value)
                    else:
                        raise self.unknown(key, given.typed[key])
        if params:
            params_text.check(params)
            given.values["params"] = params
        return given

    def _sort_one(self, override: Override, given: Given, params: dict[str, Any]) -> None:
        key, value = override.key, override.value
        in_dict = dict_key_of(key, self.annotations)
        is_text = not value.startswith("{")
        # The user may have a group of this name: +model=resnet takes model/resnet.yaml.
        is_group = in_dict == key and key != "params" and is_text and bool(self.choices(key))
        if is_group:
            in_dict = ""
        is_choice = is_group or (not in_dict and key not in self.annotations and is_text)
        if is_choice:
            given.choices.append(override.typed)
        else:
            given.typed[key] = override.typed
        if in_dict == "params":
            param = escaped(param_of(override), self._is_reference)
            params_text.put(params, key, param, received=override.typed)
        elif in_dict:
            given.for_hydra.append(f"++{checked_for_hydra(override)}")
        elif is_group or key in SET_BY_US or key not in self.annotations:
            given.for_hydra.append(self._group_choice(override))
        elif self.annotations[key] is str:
            given.values[key] = escaped(unquoted(value), self._is_reference)
        else:
            given.for_hydra.append(checked_for_hydra(override))

    def _group_choice(self, override: Override) -> str:
        """The override for Hydra that chooses a file of a group, or sets several keys of it."""
        group = override.key.partition("@")[0]
        is_ours = group in self.sections
        choices = self.choices(group)
        if not is_ours and (not choices or (conf_dir() / group).is_dir()):
            raise self.unknown(override.key, override.typed)
        if is_ours and override.value.startswith("{"):
            return checked_for_hydra(override)
        if override.value not in (*choices, "null"):
            keys = f", or set one of its keys: {group}.key=value" if is_ours else ""
            raise ConfigError(
                f"{group} must be one of {', '.join(choices)}{keys}.",
                received=override.typed,
                hint=did_you_mean(override.value, choices),
            )
        # A group of ours is in the list of defaults already, so that a + would change nothing.
        prefix = "" if is_ours else override.prefix
        return f"{prefix}{override.key}={override.value}"

    def choices(self, group: str) -> list[str]:
        """The files of a group; none of Hydra's own."""
        if group.partition("/")[0].partition(".")[0] == "hydra":
            return []
        return list(self._loader.get_group_options(group, config_name=self._name))

    def unknown(self, key: str, received: str, *, where: str = "") -> ConfigError:
        """The error for a key that cannot be set, with the keys that can be."""
        instead = getattr(self._class, "INSTEAD_OF_A_MODEL_IN_FILES", None)
        if instead is not None and key.partition(".")[0] in model_spec.SETTINGS:
            return ConfigError(instead[0], received=received, hint=f"{where} {instead[1]}")
        theirs = [
            group
            for group in self._loader.list_groups("")
            if group != "hydra" and not (conf_dir() / group).is_dir()
        ]
        groups = ""
        if theirs:
            groups = f" Groups of --config-dir: {', '.join(theirs)}.{did_you_mean(key, theirs)}"
        elif received.startswith("+"):
            groups = " Groups of your own are in the directory that --config-dir names."
        reason = unknown_key(key, self._class, hidden=SET_BY_US)
        return ConfigError(f"{reason}{groups}", received=received, hint=where)

    def _is_reference(self, name: str, is_call: bool) -> bool:
        """Whether `${name}` or `${name:...}` in a text means another value."""
        if is_call:
            return bool(OmegaConf.has_resolver(name))
        return name in self.annotations or bool(dict_key_of(name, self.annotations))
