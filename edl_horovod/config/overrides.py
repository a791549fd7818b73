"""One setting as a user typed it, `key=value`."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from edl_horovod.config import params as params_text
from edl_horovod.errors import ConfigError

__all__ = [
    "Override",
    "gathered_errors",
    "checked_for_hydra",
    "escaped",
    "hydra_value",
    "param_of",
    "split",
    "unquoted",
    "unreadable",
]


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


@contextmanager
def gathered_errors() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Collect the errors of several blocks, and raise them as one error at the end.

    Yields a function that returns the context manager for one block.
    """
    errors: list[ConfigError] = []

    @contextmanager
    def collect() -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            errors.append(error)

    yield collect
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "".join(f"\n  {error}" for error in errors)
        raise ConfigError(f"{len(errors)} settings cannot be taken:{lines}")
