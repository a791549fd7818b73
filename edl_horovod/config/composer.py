"""One composition with an open Hydra: put together, checked, and its errors explained."""

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
from edl_horovod.config.given import Given, Sorter
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
    """Who chooses the settings of a sweep's jobs: `hydra/sweeper` and `hydra.sweeper`."""

    params: dict[str, str]
    """Settings with several values that a file gives, in Hydra's grammar."""
    search: SearchConfig | None
    """How Optuna searches; None for all combinations."""
    loader: ConfigLoader
    """Lists what a glob may match."""


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
        given = self._sort(overrides, values)
        composed = self._compose(given)
        try:
            found = OmegaConf.to_container(composed, resolve=True)
        except OmegaConfBaseException as e:
            raise self._explained(e, given) from e
        assert isinstance(found, dict)
        plain = {str(key): value for key, value in found.items() if value != _MISSING}
        try:
            if "model" in self._sorter.annotations:
                model_spec.expand(plain)
            self._check_needed(plain)
            check_no_secrets(plain)
            make_absolute(plain)
            return resolved.build(self._class, plain)
        except ConfigError as e:
            keys = list(e.received) if isinstance(e.received, Mapping) else []
            where = next((file for key in keys if (file := self._where(key, given))), "")
            if not where:
                raise
            raise e.with_more_hint(where) from e

    def description(self, overrides: Sequence[str]) -> str:
        """The settings as YAML, with comments."""
        given = self._sort(overrides, {})
        tree = OmegaConf.to_container(self._compose(given), resolve=False)
        found = origins(self._loader, self._name, given.for_hydra)
        assert isinstance(tree, dict)
        return "\n".join(self._lines(tree, "", given, found))

    def _lines(
        self, tree: dict[Any, Any], prefix: str, given: Given, found: dict[str, str]
    ) -> Iterator[str]:
        indent = "  " * prefix.count(".")
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if key not in self._sorter.annotations:
                yield f"{indent}{name}:"
                yield from self._lines(value, f"{key}.", given, found)
                continue
            dumped = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
            lines = dumped.removesuffix("...\n").splitlines()
            text = lines[0] if len(lines) == 1 else json.dumps(value, ensure_ascii=False)
            origin = self._origin(key, given, found)
            yield f"{indent}{name}: {without_secrets(text)}  # {origin}"

    def sweeper(self, overrides: Sequence[str], for_sweeper: Sequence[str]) -> Sweeper:
        """What the files and a command say of Hydra's sweeper.

        Raises:
            ConfigError: One is unknown or malformed.
        """
        for override in map(split, for_sweeper):
            _check_for_sweeper(override)
        given = self._sort(overrides, {})
        words = [*given.for_hydra, *for_sweeper]
        try:
            composed = hydra.compose(self._name, overrides=words, return_hydra_config=True)
            self._check_secrets(composed, given, "hydra.sweeper")
            name = composed.hydra.runtime.choices["hydra/sweeper"]
            found = OmegaConf.to_container(composed.hydra.sweeper, resolve=True)
        except _HYDRA_ERRORS as e:
            raise self._explained(e, given) from e
        assert isinstance(found, dict)
        check_choice("hydra/sweeper", str(name), ("basic", "optuna"))
        given_params = found.pop("params") or {}
        if not isinstance(given_params, Mapping):
            raise ConfigError(
                "hydra.sweeper.params must be a dict of settings with several values.",
                received={"hydra.sweeper.params": given_params},
                hint=f"{self._where('hydra.sweeper.params', given)} Write {{key: 'a,b'}}.",
            )
        for key, value in given_params.items():
            if isinstance(value, Mapping):
                raise ConfigError(
                    "hydra.sweeper.params takes keys with dots.",
                    received=f"hydra.sweeper.params.{key}={value}",
                    hint=f"Write {key}.{next(iter(value), 'key')}: a,b in one line.",
                )
        params = {str(key): str(value) for key, value in given_params.items()}
        search = resolved.build(SearchConfig, found) if name == "optuna" else None
        return Sweeper(params, search, self._loader)

    def _origin(self, key: str, given: Given, found: dict[str, str]) -> str:
        if key == "task":
            return f"edl {self._verb}"
        parts = [file for name, file in found.items() if is_within(name, key)]
        if any(is_within(key, name) for name in given.typed):
            parts = []
        if given.typed_as(key):
            parts.append("command line")
        return ", ".join(dict.fromkeys(parts)) or "default"

    def _sort(self, overrides: Sequence[str], values: Mapping[str, Any]) -> Given:
        try:
            return self._sorter.sort(overrides, values)
        except _HYDRA_ERRORS as e:
            raise self._explained(e, Given()) from e

    def _compose(self, given: Given) -> DictConfig:
        """The settings together, with interpolations.

        Raises:
            ConfigError: They cannot be put together.
        """
        self._check_name()
        try:
            composed = hydra.compose(self._name, overrides=given.for_hydra)
            self._check_is_complete(composed)
            for key, value in given.values.items():
                OmegaConf.update(composed, key, value, force_add=True)
        except _HYDRA_ERRORS as e:
            raise self._explained(e, given) from e
        self._check_set_by_us(composed, given)
        if "task" in self._sorter.annotations:
            composed.task = self._verb
        if self._first is None:
            self._first = composed
        OmegaConf.copy_cache(self._first, composed)
        self._check_secrets(composed, given)
        return composed

    def _check_name(self) -> None:
        if not any(source.is_config(self._name) for source in self._loader.get_sources()):
            found = self._loader.get_group_options("")
            known = [name for name in found if not name.startswith(("_", "edl_horovod_"))]
            raise ConfigError(
                f"There is no file {self._name}.yaml.{did_you_mean(self._name, known)}",
                received=f"--config-name={self._name}",
                hint=f"Give one of {', '.join(known)}, or its directory by --config-dir.",
            )

    def _check_is_complete(self, composed: DictConfig) -> None:
        """See that the user's own first file starts from our settings."""
        if OmegaConf.get_type(composed) is not self._class:
            raise ConfigError(
                f"{self._name}.yaml does not start from the settings of edl {self._verb}.",
                received=f"--config-name={self._name}",
                hint=f"Begin it with the line `defaults: [{self._start}, _self_]`.",
            )

    def _check_set_by_us(self, composed: DictConfig, given: Given) -> None:
        """Refuse a file that sets a key that only we set."""
        raw = OmegaConf.to_container(composed, resolve=False)
        assert isinstance(raw, dict)
        for key, value in flat(raw):
            if key in SET_BY_US and value not in ("", _MISSING):
                raise self._sorter.unknown(key, f"{key}={value}", where=self._where(key, given))

    def _check_secrets(self, composed: DictConfig, given: Given, section: str = "") -> None:
        """Refuse secrets, for everything composed is written to the job's directory.

        The password in the URL of a model zoo alone is left out there, so it may come from a
        variable. URLs of data have an error of their own.
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
                hint=f"{self._where(key, given)} {hint}, and pods get it by kubernetes.secret_env.",
            )

    def _check_needed(self, values: dict[str, Any]) -> None:
        """Name everything that is missing at once, with what it means."""
        wanted = needed(self._verb)
        missing = [key for key in wanted if not values.get(key)]
        is_file = values["model_zoo"].endswith(".py")
        if "model_def" in missing and (is_file or values.get("model")):
            missing.remove("model_def")  # One file may hold one model; who opens it will see.
        if missing:
            meanings = {setting.key: setting.meaning for setting in settings(self._class)}
            lines = "".join(f"\n  {key}=...  {' '.join(meanings[key].split())}" for key in missing)
            names = " and ".join([", ".join(wanted[:-1]), wanted[-1]][len(wanted) == 1 :])
            raise ConfigError(f"{self._verb} needs {names}. Give what is missing:{lines}")

    def _where(self, key: str, given: Given) -> str:
        """A sentence with the file that a value stands in; empty where it was typed."""
        if given.typed_as(key):
            return ""
        try:
            found = origins(self._loader, self._name, given.for_hydra)
        except _HYDRA_ERRORS:
            return ""
        files = [file for name, file in found.items() if is_within(name, key)]
        return f" It stands in {files[-1]}." if files else ""

    def _explained(self, error: Exception, given: Given) -> ConfigError:
        """Hydra's error as one of ours, naming the key, what was given, and the file."""
        if isinstance(error, UnicodeDecodeError):
            # It holds the bytes that Hydra read, and not the path of their file.
            folders = [each.path for each in self._loader.get_sources() if each.scheme() == "file"]
            files = [file for folder in folders for file in Path(folder).rglob("*.yaml")]
            found = [str(file) for file in files if error.object in file.read_bytes()]
            return ConfigError(
                "A file of settings is not text in UTF-8.",
                received=", ".join(found),
                hint="Save it in UTF-8.",
            )
        cause: BaseException | None = error
        while cause is not None and not getattr(cause, "full_key", None):
            cause = cause.__cause__ or cause.__context__
        key = str(getattr(cause, "full_key", None) or "")
        typed = given.typed_as(key) if key else " ".join([*given.choices, *given.typed.values()])
        where = self._where(key, given) if key else ""
        if isinstance(cause, InterpolationResolutionError):
            reason = str(cause).partition("\n")[0]
            return ConfigError(
                f"The value of {key} cannot be resolved: {reason}.",
                received=typed or key,
                hint=f"{where} Write ${{oc.env:NAME}}, ${{now:%Y-%m-%d}} or ${{key}}.",
            )
        if key in self._sorter.annotations:
            value = typed.partition("=")[2] if key in given.typed else "..."
            (meaning,) = (each.meaning for each in settings(self._class) if each.key == key)
            hint = f"{where} {meaning}"
            return resolved.wrong_type(key, value, self._sorter.annotations[key], hint=hint)
        is_unknown = not any(name.startswith(f"{key}.") for name in self._sorter.annotations)
        if key and is_unknown and not is_within(key, "hydra"):
            group = key.partition(".")[0]
            if where and group not in self._sorter.sections and self._sorter.choices(group):
                where += " Begin the file with the line `# @package _global_`."
            return self._sorter.unknown(key, typed or f"{key}=...", where=where)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return ConfigError(
            f"The settings cannot be put together. {' '.join(lines).rstrip('.')}.",
            received=typed or "",
            hint=where,
        )


def _check_for_sweeper(override: Override) -> None:
    """Refuse what a command cannot say of Hydra."""
    if not override.key.startswith(("hydra/sweeper", "hydra.sweeper.")):
        reason = "Of Hydra's own settings only hydra/sweeper and hydra.sweeper count here."
        raise ConfigError(reason, received=override.typed, hint="Leave it out.")
    if is_within(override.key, "hydra.sweeper.params"):
        name = override.key.removeprefix("hydra.sweeper.params").removeprefix(".")
        raise ConfigError(
            "A command gives the values of a sweep to the setting itself.",
            received=override.typed,
            hint=f"Write {name or 'key'}=a,b.",
        )
