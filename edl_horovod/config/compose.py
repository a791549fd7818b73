"""From what a user typed to a checked configuration, by Hydra (as `sweep`, and nothing else).

Hydra chooses the files of conf/ and reads numbers, booleans and parameters. Text settings (paths,
globs, names) are taken letter for letter, so a path needs no quotes but those for the shell.
"""

import functools
import os
import re
import threading
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra import version as hydra_version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edl_horovod.config import params as params_text
from edl_horovod.config import resolved
from edl_horovod.config.fields import NEEDED, SET_BY_US, settings, unknown_key
from edl_horovod.config.image import ImageConfig
from edl_horovod.config.overrides import Override, all_told, checked_for_hydra, hydra_value, split
from edl_horovod.config.prepare import PrepareConfig
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.files.url_secrets import without_secrets

__all__ = [
    "compose",
    "compose_image",
    "compose_prepare",
    "conf_dir",
    "group_choices",
]

ConfigT = TypeVar("ConfigT", JobConfig, PrepareConfig, ImageConfig)

_FILES: dict[type, str] = {JobConfig: "config", PrepareConfig: "prepare", ImageConfig: "image"}
"""The file of conf/ that each class starts from."""

_FILE_LISTS = ("data", "validation_data")
_PATHS = ("output", "job_dir", "model_zoo", "trained_model", "init_from")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ELSEWHERE = re.compile(rf"{_URL.pattern}|[\w.-]+@[\w.-]+:")
_MISSING = "???"
_VARIABLE = re.compile(r"^\$(?:(\w+)|\{(\w+)\})(?=/|$)")
_HYDRA_LOCK = threading.Lock()
"""Hydra composes in one place for the whole process; two threads may each start a job."""


def compose(task: str, overrides: Sequence[str]) -> JobConfig:
    """The configuration of a job.

    Args:
        task: `train`, `evaluate` or `predict`.
        overrides: Settings as typed in a command: `train.epochs=3`, `launch=mpi`, `params.x=[1,2]`.

    Raises:
        ConfigError: A setting is unknown, missing, malformed or contradicts another.
    """
    return _compose(JobConfig, task, overrides, fixed={"task": task})


def compose_prepare(overrides: Sequence[str]) -> PrepareConfig:
    """The configuration of `prepare`.

    Args:
        overrides: Settings as typed in a command: `records_per_shard=1000`.

    Raises:
        ConfigError: A setting is unknown, missing or malformed.
    """
    return _compose(PrepareConfig, "prepare", overrides, fixed={})


def compose_image(overrides: Sequence[str]) -> ImageConfig:
    """The configuration of `image`.

    Args:
        overrides: Settings as typed in a command: `base_image=registry/edl-worker:0.1.0`.

    Raises:
        ConfigError: A setting is unknown, missing or malformed.
    """
    return _compose(ImageConfig, "image", overrides, fixed={})


def conf_dir() -> Path:
    """The directory of the Hydra groups: in the installed package, or beside it in the source tree.

    Raises:
        ConfigError: It is in neither place.
    """
    package = Path(__file__).resolve().parent.parent
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if (place / "config.yaml").is_file() and (place / "prepare.yaml").is_file():
            return place
    raise ConfigError(
        "The directory conf/ of this installation is missing. "
        f"Received: {' and '.join(map(str, places))}. Install edl_horovod again."
    )


def _compose(
    config_class: type[ConfigT],
    verb: str,
    overrides: Sequence[str],
    *,
    fixed: dict[str, str],
) -> ConfigT:
    try:
        return _composed(config_class, verb, overrides, fixed=fixed)
    except ConfigError as e:
        shown = without_secrets(str(e))
        if shown == str(e):
            raise
        raise ConfigError(shown) from None  # Its cause shows what was typed, too.


def _composed(
    config_class: type[ConfigT],
    verb: str,
    overrides: Sequence[str],
    *,
    fixed: dict[str, str],
) -> ConfigT:
    config_name = _FILES[config_class]
    annotations = {setting.key: setting.annotation for setting in settings(config_class)}
    texts: dict[str, str] = dict(fixed)
    for_hydra: list[str] = []
    params: dict[str, Any] = {}
    with all_told() as telling:
        for typed in overrides:
            with telling():
                override = split(typed)
                if "params" in annotations and override.key.partition(".")[0] == "params":
                    _set_params(params, override)
                elif _is_in_dict(override.key, annotations):
                    for_hydra.append(f"++{checked_for_hydra(override)}")
                elif override.key in SET_BY_US or override.key not in annotations:
                    for_hydra.append(_group_choice(override, config_class))
                elif annotations[override.key] is str:
                    texts[override.key] = override.value
                else:
                    for_hydra.append(checked_for_hydra(override))
    try:
        values = _values_from_hydra(config_class, config_name, for_hydra, texts)
    except (HydraException, OmegaConfBaseException) as e:
        raise ConfigError(_explain(e, overrides, config_class)) from e
    if params:
        values["params"].update(params)
    _check_needed(verb, values, config_class)
    _check_no_secrets(values)
    _make_absolute(values)
    return resolved.build(config_class, values, source="")


def _is_in_dict(key: str, annotations: dict[str, Any]) -> bool:
    """Whether the key is a dict's or one that the user gives it: `kubernetes.env.NAME`."""
    parts = key.split(".")
    names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return any(typing.get_origin(annotations.get(name)) is dict for name in names)


def _group_choice(override: Override, config_class: type) -> str:
    """The override for Hydra that chooses a file of a group, or sets several keys of it at once."""
    sections = {
        setting.key.partition(".")[0] for setting in settings(config_class) if "." in setting.key
    }
    if override.key not in sections:
        reason = unknown_key(override.key, config_class, hidden=SET_BY_US)
        raise ConfigError(f"{reason} Received: {override.typed}.")
    if override.value.startswith("{"):
        return checked_for_hydra(override)
    choices = group_choices(override.key)
    if override.value not in choices:
        raise ConfigError(
            f"{override.key} must be one of {', '.join(choices)}, or set one of its keys: "
            f"{override.key}.key=value. Received: {override.typed}."
            f"{did_you_mean(override.value, choices)}"
        )
    return f"{override.key}={override.value}"


def group_choices(group: str) -> list[str]:
    """The files of a group of conf/, as `launch=...` names them."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def _set_params(params: dict[str, Any], override: Override) -> None:
    """Put `params="a=1, b=2"`, `params={a: 1}` or `params.a=1` into the parameters."""
    _, *path = override.key.split(".")
    if not path:
        is_dict = override.value.startswith("{")
        params.update(_param_value(override) if is_dict else params_text.parse(override.value))
        return
    place = params
    for name in path[:-1]:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(
                f"params.{name} is not a dict, so it has no keys. Received: {override.typed}."
            )
    place[path[-1]] = _param_value(override)


def _param_value(override: Override) -> Any:
    """A Python literal, or what Hydra's spelling means (`true`, `null`, `[a,b]`, bare text)."""
    try:
        return params_text.literal(override.value)
    except ConfigError:
        return hydra_value(f"x={override.value}", override)


def _check_needed(verb: str, values: dict[str, Any], config_class: type) -> None:
    """Name everything that is missing at once, with what it means."""
    meanings = {setting.key: setting.meaning for setting in settings(config_class)}
    missing = [key for key in NEEDED[verb] if not values.get(key)]
    if values["model_zoo"].endswith(".py") and "model_def" in missing:
        missing.remove("model_def")  # One file may hold one model; who opens it will see.
    if missing:
        lines = "".join(f"\n  {key}=...  {' '.join(meanings[key].split())}" for key in missing)
        needed = f"{', '.join(NEEDED[verb][:-1])} and {NEEDED[verb][-1]}"
        raise ConfigError(f"{verb} needs {needed}. Give what is missing:{lines}")


def _values_from_hydra(
    config_class: type, config_name: str, overrides: list[str], texts: dict[str, str]
) -> dict[str, Any]:
    with _hydra_ready(config_class, config_name):
        composed = hydra.compose(config_name, overrides=overrides)
    for key, text in texts.items():
        OmegaConf.update(composed, key, _without_interpolation(text))
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if value != _MISSING}


@contextmanager
def _hydra_ready(config_class: type, config_name: str) -> Iterator[None]:
    """Hydra with our directory and schema; what a program around us set up comes back after."""
    with _HYDRA_LOCK, _outer_hydra_kept():
        node = _schema_node(config_class)
        ConfigStore.instance().store(name=f"edl_horovod_{config_name}", node=node)
        with hydra.initialize_config_dir(
            str(conf_dir()), job_name="edl_horovod", version_base="1.3"
        ):
            yield


@contextmanager
def _outer_hydra_kept() -> Iterator[None]:
    """Hydra's process-wide state as it was, also inside a function under `@hydra.main`."""
    outer, outer_base = GlobalHydra.instance().hydra, hydra_version.VersionBase.instance().getbase()
    outer_job = JobRuntime.instance().conf.copy()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer
        hydra_version.VersionBase.instance().version_base = outer_base
        JobRuntime.instance().conf = outer_job


@functools.cache  # Hydra copies what it takes out of its store.
def _schema_node(config_class: type) -> DictConfig:
    """The schema for Hydra; OmegaConf makes frozen dataclasses read-only: no use for composing."""
    node: DictConfig = OmegaConf.structured(config_class)
    _thaw(node)
    return node


def _thaw(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _thaw(child)


def _without_interpolation(text: str) -> str:
    """The text that OmegaConf resolves to this text: `${...}` in a path is not a reference."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def _explain(error: Exception, overrides: Sequence[str], config_class: type) -> str:
    """Hydra's error as one message of ours, naming the key and what was typed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__
    key = str(getattr(cause, "full_key", None) or "")
    typed = [text for text in overrides if text.lstrip("+").partition("=")[0] == key]
    received = f" Received: {typed[-1]}." if typed else f" Received: {' '.join(overrides)}."
    known = {setting.key: setting for setting in settings(config_class)}
    if key in known:
        value = typed[-1].partition("=")[2] if typed else "(inside a section or in a file of conf/)"
        return resolved.wrong_type(key, value, known[key].annotation) + f" {known[key].meaning}"
    if key and not any(name.startswith(f"{key}.") for name in known):
        return unknown_key(key, config_class, hidden=SET_BY_US) + received
    reason = " ".join(str(error).splitlines()[:2])
    return f"The settings cannot be put together. {reason}.{received}"


def _check_no_secrets(values: dict[str, Any]) -> None:
    """Refuse a password in what every rank reads, and so is written down: the URLs of data."""
    for key in _FILE_LISTS:
        given = values.get(key) or ""
        if (shown := without_secrets(given)) != given:
            raise ConfigError(
                f"{key} holds a password or a token, which would be written to the job's directory"
                f" and into the trained model. Received: {key}={shown} (without it). Leave it out,"
                " and give it where the ranks find it: AWS_ACCESS_KEY_ID and its like for s3://,"
                " GOOGLE_APPLICATION_CREDENTIALS for gs://, FSSPEC_HTTP or a .netrc file for"
                " https:// (docs/how-to/data.md)."
            )


def _make_absolute(values: dict[str, Any]) -> None:
    """Relative paths mean the directory of the command, not of a rank that reads them later."""
    for key in _FILE_LISTS:
        if values.get(key):
            parts = (part.strip() for part in values[key].split(","))
            values[key] = ",".join(_absolute(part) for part in parts if part)
    for key in _PATHS:
        if values.get(key):
            values[key] = _absolute(values[key])
            if key != "model_zoo" and _URL.match(values[key]):
                raise ConfigError(
                    f"{key} must be a path of a file system that the ranks see; only data is read"
                    f" from elsewhere. Received: {key}={values[key]}. Mount the bucket, or give a"
                    " local path and copy what is there."
                )


def _absolute(path: str) -> str:
    path = _VARIABLE.sub(_variable, path)
    if _ELSEWHERE.match(path):
        return path
    if path.startswith("@"):  # A list of input files, for prepare.
        return f"@{_absolute(path[1:])}"
    return os.path.abspath(os.path.expanduser(path))


def _variable(match: re.Match[str]) -> str:
    """What `$HOME` stands for at the start of a path: in Python no shell has done that."""
    return os.environ.get(match[1] or match[2], match[0])
