"""Compose a checked configuration from the user's settings and files, with Hydra."""

import copy
import dataclasses
import functools
import json
import os
import re
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import hydra
import yaml
from hydra import version as hydra_version
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from edl_horovod.config import resolved
from edl_horovod.config.checks import check_choice
from edl_horovod.config.conf_files import NO_FILES, ConfigFiles, conf_dir
from edl_horovod.config.fields import (
    FILE_LISTS,
    SET_BY_US,
    dict_key_of,
    flat,
    is_within,
    needed,
    plain_type,
    settings,
)
from edl_horovod.config.overrides import Override, SortedSettings, Sorter, split
from edl_horovod.config.schema import (
    SAMPLERS,
    ImageConfig,
    JobConfig,
    PrepareConfig,
    SamplerConfig,
    SearchConfig,
    needs_model_def,
)
from edl_horovod.config.secrets import check_no_secrets, secrets_in
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.records.sources.table import kind_of

ConfigT = TypeVar("ConfigT", JobConfig, PrepareConfig, ImageConfig)

_STARTS: dict[type, str] = {JobConfig: "config", PrepareConfig: "prepare", ImageConfig: "image"}
"""The file of conf/ that each class starts from."""

_MISSING = "???"
_GROUP = re.compile(r"[+~]*[\w/]+(@[\w.]+)?=")
"""The start of an override whose key has no dot, as that of a group."""
_DEFAULT, _ENVIRONMENT = "default", "environment"
"""Words for where a value came from, beside files, the command line and a program."""
_HYDRA_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError)

_SCHEMA = "edl_horovod_"
_LOCK = threading.Lock()
"""Hydra's state is global to the process, and two threads may each start a job."""

_PATHS = ("output", "job_dir", "model_zoo", "trained_model", "init_from")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL_OR_REMOTE = re.compile(rf"{_URL.pattern}|[\w.-]+@[\w.-]+:")
_VARIABLE = re.compile(r"^\$(?:(\w+)|\{(\w+)\})(?=/|$)")


def compose(
    task: str,
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, Any] | None = None,
    files: ConfigFiles = NO_FILES,
) -> JobConfig:
    """The configuration of a job.

    Args:
        task: `train`, `evaluate` or `predict`.
        overrides: Settings as typed in a command: `train.epochs=3`, `launch=mpi`, `params.x=[1,2]`.
        values: Keys with dots to values, which are used as they are.
        files: The user's own files of settings.

    Raises:
        ConfigError: A setting is unknown, missing, malformed or contradicts another.
    """
    with _open_composer(JobConfig, task, files) as composer:
        config: JobConfig = composer.config(overrides, values or {})
        return config


def compose_sweep(
    points: Sequence[tuple[Sequence[str], Mapping[str, Any]]], files: ConfigFiles
) -> list[JobConfig]:
    """The configurations of several trainings, with the same time for `${now:...}`.

    Raises:
        ConfigError: A setting is unknown, missing, malformed or contradicts another.
    """
    with _open_composer(JobConfig, "train", files) as composer:
        return [composer.config(overrides, values) for overrides, values in points]


def compose_as(
    config_class: type[ConfigT],
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, Any] | None = None,
    files: ConfigFiles = NO_FILES,
) -> ConfigT:
    """The configuration of a verb that starts no job, prepare or image; see `compose`.

    Raises:
        ConfigError: A setting is unknown, missing or malformed.
    """
    # The files of conf/ that these classes start from have the names of the verbs.
    with _open_composer(config_class, _STARTS[config_class], files) as composer:
        config: ConfigT = composer.config(overrides, values or {})
        return config


def sweeper_of(
    overrides: Sequence[str], for_sweeper: Sequence[str], files: ConfigFiles
) -> tuple[dict[str, str], SearchConfig | None, ConfigLoader]:
    """The settings of Hydra's sweeper, `hydra/sweeper` and `hydra.sweeper`.

    Returns:
        Settings with several values from a file, in Hydra's grammar; how Optuna searches, or None
        to run all combinations; and what lists the files that a glob may match.

    Args:
        overrides: Settings as typed in a command.
        for_sweeper: Settings of Hydra: `hydra/sweeper=optuna`, `hydra.sweeper.n_trials=30`.
        files: The user's own files of settings.

    Raises:
        ConfigError: A setting is unknown or malformed.
    """
    with _open_composer(JobConfig, "train", files) as composer:
        return (*composer.sweeper(overrides, for_sweeper), composer.loader)


def describe(verb: str, overrides: Sequence[str], files: ConfigFiles) -> str:
    """The composed settings as YAML, each with the source of its value.

    Interpolations are not resolved, so no environment variable is shown. Required settings may be
    missing.

    Raises:
        ConfigError: A setting is unknown or malformed.
    """
    classes: dict[str, type] = {"prepare": PrepareConfig, "image": ImageConfig}
    with _open_composer(classes.get(verb, JobConfig), verb, files) as composer:
        return composer.description(overrides)


class _Composer:
    """Composes configurations of one class while Hydra is open."""

    def __init__(self, config_class: type, verb: str, name: str, loader: ConfigLoader) -> None:
        self._class, self._verb, self.loader = config_class, verb, loader
        self._start = _STARTS[config_class]
        self._name = name or self._start
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
            if "origins" in self._sorter.annotations:
                values_by_name["origins"] = self._recorded(composed, sorted_settings)
            if expand := getattr(self._class, "EXPAND", None):
                expand(values_by_name)
            self._check_needed(values_by_name)
            check_no_secrets(values_by_name)
            _make_absolute(values_by_name)
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
        assert isinstance(tree, dict)
        tree.pop("origins", None)  # They are the comments.
        files = self._origins(sorted_settings)
        files_by_key = {key: _shown_path(file) for key, file in files.items()}
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

    def _recorded(self, composed: DictConfig, sorted_settings: SortedSettings) -> dict[str, str]:
        """Where each setting came from, for the job's record; without those that are defaults."""
        files = self._origins(sorted_settings)
        files_by_key = {key: _recorded_path(file) for key, file in files.items()}
        origins = {
            key: self._origin(key, sorted_settings, files_by_key)
            for key in self._sorter.annotations
        }
        plain = OmegaConf.to_container(composed, resolve=False)
        assert isinstance(plain, dict)
        for key, value in flat(plain):
            setting = dict_key_of(key, self._sorter.annotations) or key
            if "${oc.env:" in str(value) and not origins[setting].endswith(_ENVIRONMENT):
                origins[setting] += f", {_ENVIRONMENT}"
        if composed.model_spec:
            # Its content becomes the setting model, and the name of the file is left out.
            origins |= {"model": origins["model_spec"], "model_spec": _DEFAULT}
            origins["model"] += f", {os.path.abspath(os.path.expanduser(composed.model_spec))}"
        return {key: origin for key, origin in origins.items() if origin != _DEFAULT}

    def _origins(self, sorted_settings: SortedSettings) -> Mapping[str, Path]:
        """The file that sets each key; see `_origins_of`."""
        if _UserDirectory.path:
            return _origins_of(self.loader, self._name, sorted_settings.for_hydra)
        # Our own files stay as they are, and this is a quarter of composing.
        choices = (text for text in sorted_settings.for_hydra if _GROUP.match(text))
        return _origins_of_ours(self._name, tuple(choices))

    def sweeper(
        self, overrides: Sequence[str], for_sweeper: Sequence[str]
    ) -> tuple[dict[str, str], SearchConfig | None]:
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
        if name != "optuna":
            return params, None
        return params, resolved.build(SearchConfig, sweeper_settings, section="hydra.sweeper")

    def _origin(
        self, key: str, sorted_settings: SortedSettings, files_by_key: dict[str, str]
    ) -> str:
        if key == "task":
            return f"edl {self._verb}"
        parts = [file for name, file in files_by_key.items() if is_within(name, key)]
        if any(is_within(key, name) for name in sorted_settings.typed):
            parts = []
        if source := sorted_settings.source_of(key):
            parts.append(source)
        return ", ".join(dict.fromkeys(parts)) or _DEFAULT

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
        if not any(source.is_config(self._name) for source in self.loader.get_sources()):
            options = self.loader.get_group_options("")
            names = [name for name in options if not name.startswith(("_", "edl_horovod_"))]
            raise ConfigError(
                f"There is no file {self._name}.yaml.{did_you_mean(self._name, names)}",
                received=f"--config-name={self._name}",
                hint=f"Give one of {', '.join(names)}, or its directory by --config-dir.",
            )

    def _check_is_complete(self, composed: DictConfig) -> None:
        """Refuse a --config-name file that does not start from the settings of the verb."""
        if OmegaConf.get_type(composed) is not _schema_class(self._class):
            raise ConfigError(
                f"{self._name}.yaml does not start from the settings of edl {self._verb}.",
                received=f"--config-name={self._name}",
                hint=f"Begin it with the line `defaults: [{self._start}, _self_]`.",
            )

    def _check_set_by_us(self, composed: DictConfig, sorted_settings: SortedSettings) -> None:
        """Refuse a file that sets a key which only a command sets."""
        raw = OmegaConf.to_container(composed, resolve=False)
        assert isinstance(raw, dict)
        for key in SET_BY_US:
            if (value := raw.get(key, "")) not in ("", {}, _MISSING):
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
            name = variable or "a secret"
            hint = f"Leave it out; the ranks can read {name} from their environment"
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
        if "model_def" in missing and not needs_model_def(values):
            missing.remove("model_def")
        if missing:
            meanings = {setting.key: setting.meaning for setting in settings(self._class)}
            lines = "".join(f"\n  {key}=...  {' '.join(meanings[key].split())}" for key in missing)
            *first_keys, last_key = needed_keys
            names = f"{', '.join(first_keys)} and {last_key}" if first_keys else last_key
            raise ConfigError(f"{self._verb} needs {names}. Give what is missing:{lines}")

    def _location(self, key: str, sorted_settings: SortedSettings) -> str:
        """A sentence with the file that sets a value; empty where a command sets it."""
        if sorted_settings.typed_as(key):
            return ""
        try:
            files_by_key = self._origins(sorted_settings)
        except _HYDRA_ERRORS:
            return ""
        files = [file for name, file in files_by_key.items() if is_within(name, key)]
        return f" It is set in {_shown_path(files[-1])}." if files else ""

    def _explained(self, error: Exception, sorted_settings: SortedSettings) -> ConfigError:
        """A ConfigError for an error of Hydra, with the key, the user's text and the file."""
        if isinstance(error, UnicodeDecodeError):
            # The error has the bytes that Hydra read, but not the path of their file.
            folders = [
                entry.path for entry in self.loader.get_sources() if entry.scheme() == "file"
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
        words = [*sorted_settings.choices, *sorted_settings.typed.values()]
        typed = sorted_settings.typed_as(key) if key else " ".join(words)
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


@contextmanager
def _open_composer(config_class: type, verb: str, files: ConfigFiles) -> Iterator[_Composer]:
    """Open Hydra with our directory, the user's directory and a schema.

    The Hydra of the program that calls us is restored at the end.

    Raises:
        ConfigError: The user's directory cannot be used.
    """
    schema_name = _SCHEMA + _STARTS[config_class]
    try:
        ours, user_dir = str(conf_dir()), files.path
        with _LOCK, _outer_hydra_kept():
            _register(schema_name, config_class)
            _UserDirectory.path = user_dir
            with hydra.initialize_config_dir(ours, job_name="edl_horovod", version_base="1.3"):
                loader = GlobalHydra.instance().config_loader()
                yield _Composer(config_class, verb, files.name, loader)
    except ConfigError as e:
        if without_secrets(str(e)) == str(e):
            raise
        raise e.reworded(without_secrets) from None  # Its cause shows what was typed, too.


@functools.lru_cache(64)
def _origins_of_ours(config_name: str, choices: tuple[str, ...]) -> Mapping[str, Path]:
    return _origins_of(GlobalHydra.instance().config_loader(), config_name, choices)


def _origins_of(
    loader: ConfigLoader, config_name: str, overrides: Sequence[str]
) -> dict[str, Path]:
    """The file that sets each key, by the key with dots; keys that no file sets are left out."""
    defaults = loader.compute_defaults_list(config_name, list(overrides), RunMode.RUN).defaults
    files_by_key: dict[str, Path] = {}
    for default in defaults:
        path = default.config_path or ""
        source = next((entry for entry in loader.get_sources() if entry.is_config(path)), None)
        if path.startswith(("hydra/", _SCHEMA)) or source is None:
            continue
        content = OmegaConf.to_container(source.load_config(path).config, resolve=False)
        package = (default.package or "").removeprefix("_global_").strip(".")
        prefix = f"{package}." if package else ""
        file = Path(source.path) / f"{path.removesuffix('.yaml')}.yaml"
        files_by_key |= {key: file for key, _ in flat(content, prefix)}
    return files_by_key


def _make_absolute(values: dict[str, Any]) -> None:
    """Make paths absolute: a relative path means the directory where the command runs."""
    for key in FILE_LISTS:
        if values.get(key):
            values[key] = kind_of(values[key]).absolute(values[key], _absolute)
    for key in _PATHS:
        if values.get(key):
            values[key] = _absolute(values[key])
            if key != "model_zoo" and _URL.match(values[key]):
                raise ConfigError(
                    f"{key} must be a path in a file system that the ranks can access; only data is"
                    " read from URLs.",
                    received={key: values[key]},
                    hint="Mount the bucket, or copy its content and give a local path.",
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


def _shown_path(file: Path) -> str:
    """A file's path for people: our files from `conf/` on, others relative to the directory."""
    is_ours = file.is_relative_to(conf_dir())
    if not is_ours and file.is_relative_to(Path.cwd()):
        return str(file.relative_to(Path.cwd()))
    return _recorded_path(file)


def _recorded_path(file: Path) -> str:
    """A file's path in a job's record: our files from `conf/` on, others absolute."""
    if file.is_relative_to(conf_dir()):
        return f"conf/{file.relative_to(conf_dir())}"
    return os.path.abspath(file)


@contextmanager
def _outer_hydra_kept() -> Iterator[None]:
    """Restore Hydra's process-wide state at the end, also inside a function of `@hydra.main`."""
    outer, outer_base = GlobalHydra.instance().hydra, hydra_version.VersionBase.instance().getbase()
    outer_job = JobRuntime.instance().conf.copy()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        _UserDirectory.path = None
        GlobalHydra.instance().hydra = outer
        hydra_version.VersionBase.instance().version_base = outer_base
        JobRuntime.instance().conf = outer_job


class _UserDirectory(SearchPathPlugin):  # type: ignore[misc]  # Hydra's plugins have no types.
    """Has Hydra search the user's directory, too, while a composer is open."""

    path: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the directory after ours."""
        if self.path is not None:
            search_path.append("command-line", f"file://{self.path}")


@functools.cache
def _register(schema_name: str, config_class: type) -> None:
    """Register a schema, the user's directory, and `hydra/sweeper=optuna` and its samplers.

    These have the keys of Hydra's plugin, which does not work with current versions of Optuna.
    """
    Plugins.instance().register(_UserDirectory)
    store = ConfigStore.instance()
    if f"{schema_name}.yaml" in store.repo:
        return  # Turning the schema into OmegaConf's nodes is an eighth of composing.
    store.store(name=schema_name, node=_schema_class(config_class))
    search = dataclasses.asdict(SearchConfig()) | {"defaults": [{"sampler": "tpe"}], "params": None}
    store.store(group="hydra/sweeper", name="optuna", node=search)
    for name in SAMPLERS:
        sampler = dataclasses.asdict(SamplerConfig(name=name))
        store.store(group="hydra/sweeper/sampler", name=name, node=sampler)


@functools.cache
def _schema_class(config_class: type) -> type:
    """The class for Hydra: OmegaConf knows no `Literal`, and does not merge into frozen classes."""
    fields: list[tuple[str, Any, Any]] = []
    annotations = typing.get_type_hints(config_class)
    for setting in dataclasses.fields(config_class):
        copied: Any = copy.copy(setting)
        annotation: Any = plain_type(annotations[setting.name])
        if dataclasses.is_dataclass(annotation):
            assert isinstance(annotation, type)
            annotation = copied.default_factory = _schema_class(annotation)
        fields.append((setting.name, annotation, copied))
    return dataclasses.make_dataclass(config_class.__name__, fields, kw_only=True)


def _absolute(path: str) -> str:
    path = _VARIABLE.sub(_variable, path)
    if _URL_OR_REMOTE.match(path):
        return path
    if path.startswith("@"):  # A list of input files, for prepare.
        return f"@{_absolute(path[1:])}"
    return os.path.abspath(os.path.expanduser(path))


def _variable(match: re.Match[str]) -> str:
    """The value of a variable at the start of a path: a Python call has no shell to expand it."""
    return os.environ.get(match[1] or match[2], match[0])
