"""Find the secrets in composed settings, which are written to the job's directory."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edl_horovod.config.fields import FILE_LISTS, is_within
from edl_horovod.config.overrides import escaped
from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets

_NAME = re.compile(r"passw|secret|token(?!iz)|credential|api_?key|access_?key|private_?key", re.I)
_ENVIRONMENT = "oc.env"
_RECORDING = "edl_horovod.recorded_env"
"""Takes the place of `oc.env` in a copy of the settings."""


@dataclass(frozen=True)
class Secret:
    """A setting whose value must not be written down."""

    key: str
    """The key with dots; inside a list or a reference, the key of the list or the reference."""
    text: str
    """The value as the user wrote it, with interpolations, but without passwords in URLs."""
    variable: str
    """The environment variable whose name says that it holds a secret; empty for a URL."""


def secrets_in(settings: DictConfig, section: str = "") -> Iterator[Secret]:
    """The settings that read a variable with a secret's name, or hold a URL with a password.

    Each setting is resolved, so the values that it refers to count, too, however it refers to
    them; only an `oc.env` whose own name is composed, `${oc.${a}:NAME}`, is missed. Settings that
    cannot be resolved are left to the caller.

    Args:
        settings: The composed settings.
        section: The key of the section to look at; empty for all settings.
    """
    plain = OmegaConf.to_container(settings, resolve=False)
    assert isinstance(plain, dict)
    texts = list(_texts(plain))
    if not any("${" in text for _, text in texts):
        # Most jobs have no interpolation; copying the settings would take longer than the rest.
        for key, text in texts:
            is_inside = not section or is_within(key, section)
            if is_inside and (shown := without_secrets(text)) != text:
                yield Secret(key, shown, "")
        return
    copy = OmegaConf.create(_recording(plain))
    assert isinstance(copy, DictConfig)
    part = OmegaConf.select(copy, section) if section else copy
    with _variables_read() as variables:
        yield from _walk(part, section, (), variables)


def check_no_secrets(values: dict[str, Any]) -> None:
    """Refuse passwords in URLs of data, which are written to the job's directory."""
    for key in FILE_LISTS:
        text = values.get(key) or ""
        if (shown := without_secrets(text)) != text:
            raise ConfigError(
                f"{key} holds a password or a token, which would be written to the job's directory"
                " and into the trained model.",
                received={key: shown},
                hint="Leave it out, and give it where the ranks find it: AWS_ACCESS_KEY_ID and its"
                " like for s3://, GOOGLE_APPLICATION_CREDENTIALS for gs://, FSSPEC_HTTP or a"
                " .netrc file for https:// (docs/how-to/data.md).",
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The keys and texts in nested dicts; texts in a list have the key of the list."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for item in value:
            yield from ((key, text) for _, text in _texts(item))


def _recording(value: Any) -> Any:
    """The same value, with `oc.env` replaced by the resolver that records names."""
    if isinstance(value, Mapping):
        return {name: _recording(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_recording(item) for item in value]
    return value.replace(_ENVIRONMENT, _RECORDING) if isinstance(value, str) else value


def _walk(
    container: DictConfig | ListConfig,
    prefix: str,
    above: tuple[DictConfig | ListConfig, ...],
    variables: list[str],
    *,
    is_key: bool = True,
) -> Iterator[Secret]:
    above = (*above, container)
    is_list = isinstance(container, ListConfig)
    raw: Any = OmegaConf.to_container(container, resolve=False)
    for name in range(len(raw)) if is_list else raw:
        key = prefix if is_list or not is_key else f"{prefix}.{name}".removeprefix(".")
        variables.clear()
        value: Any = None
        # The value may be missing, or a variable may hold something that cannot be resolved.
        with suppress(OmegaConfBaseException):
            value = container[name]
        text = without_secrets(str(raw[name]).replace(_RECORDING, _ENVIRONMENT))
        if variable := next(filter(_NAME.search, variables), ""):
            yield Secret(key, text, variable)
        elif isinstance(value, DictConfig | ListConfig):
            if not any(value is other for other in above):
                is_own = is_key and not is_list and not OmegaConf.is_interpolation(container, name)
                yield from _walk(value, key, above, variables, is_key=is_own)
        elif isinstance(value, str) and without_secrets(value) != value:
            yield Secret(key, text, "")


@contextmanager
def _variables_read() -> Iterator[list[str]]:
    """Record the names of the environment variables that settings of `_recording` read.

    `oc.env` itself is not replaced, because there is no public way to restore a resolver that a
    program has replaced. The names belong to one composition at a time.
    """
    variables: list[str] = []

    def recorded(*args: Any) -> Any:
        variables.append(str(args[0]) if args else "")
        names = ",".join(f"${{args.{number}}}" for number in range(len(args)))
        call = {"args": escaped(list(args)), "value": f"${{{_ENVIRONMENT}:{names}}}"}
        return _recording(OmegaConf.create(call).value)

    OmegaConf.register_new_resolver(_RECORDING, recorded, replace=True)
    try:
        yield variables
    finally:
        OmegaConf.clear_resolver(_RECORDING)
