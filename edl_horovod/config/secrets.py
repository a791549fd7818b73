"""Find the secrets in composed settings, which are written to the job's directory."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from edl_horovod.files.url_secrets import without_secrets

__all__ = ["Secret", "secrets_in"]

_NAME = re.compile(r"passw|secret|token(?!iz)|credential|api_?key|access_?key|private_?key", re.I)
_ENVIRONMENT = "oc.env"


@dataclass(frozen=True)
class Secret:
    """A setting whose value must not be written down."""

    key: str
    """With dots; within a list or a value that refers to another one, the key of that."""
    text: str
    """The value as it was given, with interpolations, and without passwords in URLs."""
    variable: str
    """The environment variable whose name says that it holds a secret; empty for a URL."""


def secrets_in(settings: DictConfig, prefix: str = "") -> Iterator[Secret]:
    """The settings that read a variable with a secret's name, or hold a URL with a password.

    Each setting is resolved, so what it refers to counts too, however it is written. A setting that
    cannot be resolved is left to the caller.

    Args:
        settings: As they were composed.
        prefix: What their keys begin with.
    """
    with _variables_read() as variables:
        yield from _walk(settings, prefix, (), variables)


def _walk(
    container: DictConfig | ListConfig,
    prefix: str,
    above: tuple[BaseContainer, ...],
    variables: list[str],
    *,
    is_key: bool = True,
) -> Iterator[Secret]:
    if container._is_none() or container._is_missing():
        return
    above = (*above, container)
    is_list = isinstance(container, ListConfig)
    for name in range(len(container)) if is_list else list(container.keys()):
        key = prefix if is_list or not is_key else f"{prefix}.{name}".removeprefix(".")
        raw: Any = container._get_node(name)
        variables.clear()
        value: Any = None
        # It may be missing, or not be resolved because of what a variable holds.
        with suppress(OmegaConfBaseException):
            value = container[name]
        text = without_secrets(str(raw._value()))
        if variable := next(filter(_NAME.search, variables), ""):
            yield Secret(key, text, variable)
        elif isinstance(value, DictConfig | ListConfig):
            if not any(value is other for other in above):
                is_own = is_key and not is_list and not raw._is_interpolation()
                yield from _walk(value, key, above, variables, is_key=is_own)
        elif isinstance(value, str) and without_secrets(value) != value:
            yield Secret(key, text, "")


@contextmanager
def _variables_read() -> Iterator[list[str]]:
    """The names that `${oc.env:NAME}` reads in this thread, in whatever way it is written."""
    # OmegaConf has no public way to put back a resolver that a program has replaced.
    resolvers = BaseContainer._resolvers
    original, thread = resolvers[_ENVIRONMENT], threading.get_ident()
    variables: list[str] = []

    def recording(root: Any, parent: Any, node: Any, args: Any, texts: Any) -> Any:
        if threading.get_ident() == thread:
            variables.append(str(args[0]) if args else "")
        return original(root, parent, node, args, texts)

    resolvers[_ENVIRONMENT] = recording
    try:
        yield variables
    finally:
        resolvers[_ENVIRONMENT] = original
