"""One composition with an open Hydra: merge the settings, check them, explain errors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from edl_horovod.config import model_spec, resolved
from edl_horovod.config.checks import check_choice
from edl_horovod.config.fields import FILE_LISTS, SET_BY_US, flat, is_within, needed, settings
from edl_horovod.config.given import SortedSettings, Sorter
from edl_horovod.config.overrides import Override, split
from edl_horovod.config.paths import check_no_secrets, make_absolute
from edl_horovod.config.search import SearchConfig
from edl_horovod.config.secrets import secrets_in
from edl_horovod.config.session import origins
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.files.url_secrets import without_secrets

__all__ = ["Composer", "Sweeper"]

_MISSING = "???"
_HYDRA_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError)


@dataclass(frozen=True)
class Sweeper:
    """The settings of Hydra's sweeper: `hydra/sweeper` and `hydra.sweeper`."""

    params: dict[str, str]
    """Settings with several values from a file, in Hydra's grammar."""
    search: SearchConfig | None
    """How Optuna searches; None runs all combinations."""
    loader: ConfigLoader
    """Lists the files that a glob may match."""


class Composer:
    """Composes configurations of one class while Hydra is open."""

    def __init__(
        self, config_class: type, verb: str, *, start: str, name: str, loader: ConfigLoader
    ) -> None:
        self._class = config_class
        self._verb = verb
        self._start = start
        self._name = name or start
        self._loader = loader
        self._sorter = Sorter(config_class, name=self._name, loader=loader)
        self._first: DictConfig | None = None

    def config(self, overrides: Sequence[str], values: Mapping[str, Any]) -> Any:
        """The configuration, checked.

        Raises:
            ConfigError: A setting is unknown, missing, malformed or contradicts another.
        """
        sorted_settings = self._sort(overrides, values)
        composed = self._compose(sorted_settings)
        try:
            resolved_values = OmegaConf.to_container(composed, resolve=True)
        except OmegaConfBaseException as e:
            raise self._explained(e, sorted_settings) from e
        assert isinstance(resolved_values, dict)
        values_by_name = {
            str(key): value for key, value in resolved_values.items() if value != _MISSING
        }
        try:
            if "model" in self._sorter.annotations:
                model_spec.expand(values_by_name)
            self._check_needed(values_by_name)
            check_no_secrets(values_by_name)
            make_absolute(values_by_name)
            return resolved.build(self._class, values_by_name)
        except ConfigError as e:
            keys = list(e.received) if isinstance(e.received, Mapping) else []
            location = next(
                (file for key in keys if (file := self._location(key, sorted_settings))), ""
            )
            if not location:
                raise
            raise e.with_more_hint(location) from e

    def description(self, overrides: Sequence[str]) -> str:
        """The settings as YAML, with comments."""
        sorted_settings = self._sort(overrides, {})
        tree = OmegaConf.to_container(self._compose(sorted_settings), resolve=False)
        files_by_key = origins(self._loader, self._name, sorted_settings.for_hydra)
        assert isinstance(tree, dict)
        return "\n".join(self._lines(tree, "", sorted_settings, files_by_key))

    def _lines(
        self,
        tree: dict[Any, Any],
        prefix: str,
        sorted_settings: SortedSettings,
        files_by_key: dict[str, str],
    ) -> Iterator[str]:
        indent = "  " * prefix.count(".")
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if key not in self._sorter.annotations:
                yield f"{indent}{name}:"
                yield from self._lines(value, f"{key}.", sorted_settings, files_by_key)
                continue
            dumped = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
            lines = dumped.removesuffix("...\n").splitlines()
            text = lines[0] if len(lines) == 1 else json.dumps(value, ensure_ascii=False)
            origin = self._origin(key, sorted_settings, files_by_key)
            yield f"{indent}{name}: {without_secrets(text)}  # {origin}"

    def sweeper(self, overrides: Sequence[str], for_sweeper: Sequence[str]) -> Sweeper:
        """The settings of Hydra's sweeper; see `sweeper_of`.

        Raises:
            ConfigError: A setting is unknown or malformed.
        """
        for override in map(split, for_sweeper):
            _check_for_sweeper(override)
        sorted_settings = self._sort(overrides, {})
        words = [*sorted_settings.for_hydra, *for_sweeper]
        try:
            composed = hydra.compose(self._name, overrides=words, return_hydra_config=True)
            self._check_secrets(composed, sorted_settings, "hydra.sweeper")
            name = composed.hydra.runtime.choices["hydra/sweeper"]
            sweeper_settings = OmegaConf.to_container(composed.hydra.sweeper, resolve=True)
        except _HYDRA_ERRORS as e:
            raise self._explained(e, sorted_settings) from e
        assert isinstance(sweeper_settings, dict)
        check_choice("hydra/sweeper", str(name), ("basic", "optuna"))
        sweeper_params = sweeper_settings.pop("params") or {}
        if not isinstance(sweeper_params, Mapping):
            raise ConfigError(
                "hydra.sweeper.params must be a dict of settings with several values.",
                received={"hydra.sweeper.params": sweeper_params},
                hint=f"{self._location('hydra.sweeper.params', sorted_settings)}"
                " Write {key: 'a,b'}.",
            )
        for key, value in sweeper_params.items():
            if isinstance(value, Mapping):
                raise ConfigError(
                    "hydra.sweeper.params takes keys with dots.",
                    received=f"hydra.sweeper.params.{key}={value}",
                    hint=f"Write {key}.{next(iter(value), 'key')}: a,b in one line.",
                )
        params = {str(key): str(value) for key, value in sweeper_params.items()}
        search = resolved.build(SearchConfig, sweeper_settings) if name == "optuna" else None
        return Sweeper(params, search, self._loader)

    def _origin(
        self, key: str, sorted_settings: SortedSettings, files_by_key: dict[str, str]
    ) -> str:
        if key == "task":
            return f"edl {self._verb}"
        parts = [file for name, file in files_by_key.items() if is_within(name, key)]
        if any(is_within(key, name) for name in sorted_settings.typed):
            parts = []
        if sorted_settings.typed_as(key):
            parts.append("command line")
        return ", ".join(dict.fromkeys(parts)) or "default"

    def _sort(self, overrides: Sequence[str], values: Mapping[str, Any]) -> SortedSettings:
        try:
            return self._sorter.sort(overrides, values)
        except _HYDRA_ERRORS as e:
            raise self._explained(e, SortedSettings()) from e

    def _compose(self, sorted_settings: SortedSettings) -> DictConfig:
        """The merged settings; interpolations are not resolved.

        Raises:
            ConfigError: The settings cannot be merged.
        """
        self._check_name()
        try:
            composed = hydra.compose(self._name, overrides=sorted_settings.for_hydra)
            self._check_is_complete(composed)
            for key, value in sorted_settings.values.items():
                OmegaConf.update(composed, key, value, force_add=True)
        except _HYDRA_ERRORS as e:
            raise self._explained(e, sorted_settings) from e
        self._check_set_by_us(composed, sorted_settings)
        if "task" in self._sorter.annotations:
            composed.task = self._verb
        if self._first is None:
            self._first = composed
        OmegaConf.copy_cache(self._first, composed)
        self._check_secrets(composed, sorted_settings)
        return composed

    def _check_name(self) -> None:
        if not any(source.is_config(self._name) for source in self._loader.get_sources()):
            options = self._loader.get_group_options("")
            names = [name for name in options if not name.startswith(("_", "edl_horovod_"))]
            raise ConfigError(
                f"There is no file {self._name}.yaml.{did_you_mean(self._name, names)}",
                received=f"--config-name={self._name}",
                hint=f"Give one of {', '.join(names)}, or its directory by --config-dir.",
            )

    def _check_is_complete(self, composed: DictConfig) -> None:
        """Refuse a --config-name file that does not start from the settings of the verb."""
        if OmegaConf.get_type(composed) is not self._class:
            raise ConfigError(
                f"{self._name}.yaml does not start from the settings of edl {self._verb}.",
                received=f"--config-name={self._name}",
                hint=f"Begin it with the line `defaults: [{self._start}, _self_]`.",
            )

    def _check_set_by_us(self, composed: DictConfig, sorted_settings: SortedSettings) -> None:
        """Refuse a file that sets a key which only a command sets."""
        raw = OmegaConf.to_container(composed, resolve=False)
        assert isinstance(raw, dict)
        for key, value in flat(raw):
            if key in SET_BY_US and value not in ("", _MISSING):
                raise self._sorter.unknown(
                    key, f"{key}={value}", location=self._location(key, sorted_settings)
                )

    def _check_secrets(
        self, composed: DictConfig, sorted_settings: SortedSettings, section: str = ""
    ) -> None:
        """Refuse secrets, because all settings are written to the job's directory.

        Only the password in the URL of a model zoo is not written, so it may come from a variable.
        `check_no_secrets` reports URLs of data.
        """
        for secret in secrets_in(composed, section):
            key, variable = secret.key, secret.variable
            if key == "model_zoo" or (key in FILE_LISTS and not variable):
                continue
            hint = "Leave it out; the ranks can read a secret from their environment"
            if variable:
                hint = f"Leave it out; the ranks can read {variable} from their environment"
            raise ConfigError(
                f"{key} takes a value that seems to be a secret, and settings are written to the"
                " job's directory.",
                received=f"{key}={secret.text}",
                hint=f"{self._location(key, sorted_settings)} {hint}, and pods get it by"
                " kubernetes.secret_env.",
            )

    def _check_needed(self, values: dict[str, Any]) -> None:
        """Report all missing settings in one error, each with its meaning."""
        needed_keys = needed(self._verb)
        missing = [key for key in needed_keys if not values.get(key)]
        is_file = values["model_zoo"].endswith(".py")
        if "model_def" in missing and (is_file or values.get("model")):
            missing.remove("model_def")  # The file may hold a single model; opening it will tell.
        if missing:
            meanings = {setting.key: setting.meaning for setting in settings(self._class)}
            lines = "".join(f"\n  {key}=...  {' '.join(meanings[key].split())}" for key in missing)
            names = " and ".join(
                [", ".join(needed_keys[:-1]), needed_keys[-1]][len(needed_keys) == 1 :]
            )
            raise ConfigError(f"{self._verb} needs {names}. Give what is missing:{lines}")

    def _location(self, key: str, sorted_settings: SortedSettings) -> str:
        """A sentence with the file that sets a value; empty where a command sets it."""
        if sorted_settings.typed_as(key):
            return ""
        try:
            files_by_key = origins(self._loader, self._name, sorted_settings.for_hydra)
        except _HYDRA_ERRORS:
            return ""
        files = [file for name, file in files_by_key.items() if is_within(name, key)]
        return f" It is set in {files[-1]}." if files else ""

    def _explained(self, error: Exception, sorted_settings: SortedSettings) -> ConfigError:
        """A ConfigError for an error of Hydra, with the key, the user's text and the file."""
        if isinstance(error, UnicodeDecodeError):
            # The error has the bytes that Hydra read, but not the path of their file.
            folders = [
                entry.path for entry in self._loader.get_sources() if entry.scheme() == "file"
            ]
            files = [file for folder in folders for file in Path(folder).rglob("*.yaml")]
            broken_files = [str(file) for file in files if error.object in file.read_bytes()]
            return ConfigError(
                "A file of settings is not text in UTF-8.",
                received=", ".join(broken_files),
                hint="Save it in UTF-8.",
            )
        cause: BaseException | None = error
        while cause is not None and not getattr(cause, "full_key", None):
            cause = cause.__cause__ or cause.__context__
        key = str(getattr(cause, "full_key", None) or "")
        typed = (
            sorted_settings.typed_as(key)
            if key
            else " ".join([*sorted_settings.choices, *sorted_settings.typed.values()])
        )
        location = self._location(key, sorted_settings) if key else ""
        if isinstance(cause, InterpolationResolutionError):
            reason = str(cause).partition("\n")[0]
            return ConfigError(
                f"The value of {key} cannot be resolved: {reason}.",
                received=typed or key,
                hint=f"{location} Write ${{oc.env:NAME}}, ${{now:%Y-%m-%d}} or ${{key}}.",
            )
        if key in self._sorter.annotations:
            value = typed.partition("=")[2] if key in sorted_settings.typed else "..."
            (meaning,) = (entry.meaning for entry in settings(self._class) if entry.key == key)
            hint = f"{location} {meaning}"
            return resolved.wrong_type(key, value, self._sorter.annotations[key], hint=hint)
        is_unknown = not any(name.startswith(f"{key}.") for name in self._sorter.annotations)
        if key and is_unknown and not is_within(key, "hydra"):
            group = key.partition(".")[0]
            if location and group not in self._sorter.sections and self._sorter.choices(group):
                location += " Begin the file with the line `# @package _global_`."
            return self._sorter.unknown(key, typed or f"{key}=...", location=location)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return ConfigError(
            f"The settings cannot be merged. {' '.join(lines).rstrip('.')}.",
            received=typed or "",
            hint=location,
        )


def _check_for_sweeper(override: Override) -> None:
    """Refuse settings of Hydra that a command may not set."""
    if not override.key.startswith(("hydra/sweeper", "hydra.sweeper.")):
        reason = "Only hydra/sweeper and hydra.sweeper of Hydra's own settings can be set."
        raise ConfigError(reason, received=override.typed, hint="Leave it out.")
    if is_within(override.key, "hydra.sweeper.params"):
        name = override.key.removeprefix("hydra.sweeper.params").removeprefix(".")
        raise ConfigError(
            "In a command, the values of a sweep are written at the setting itself.",
            received=override.typed,
            hint=f"Write {name or 'key'}=a,b.",
        )
