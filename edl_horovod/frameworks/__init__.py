"""The frameworks that models are written in; only a framework's own folder imports it."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edl_horovod.frameworks.base import Framework

__all__ = ["FRAMEWORKS", "FrameworkEntry", "find_framework"]


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """What can be said of a framework without importing it."""

    module: str
    """`FRAMEWORK` in it is a `base.Framework`."""
    packages: tuple[str, ...]
    """What a worker must be able to import, the framework itself first.

    Their versions decide what a trained model gives.
    """
    extra: str
    """The extra of this package that installs them."""


FRAMEWORKS = {
    "keras": FrameworkEntry(
        module="edl_horovod.frameworks.keras.framework",
        packages=("keras", "tensorflow"),
        extra="tensorflow",
    )
}


def find_framework(name: str) -> "Framework":
    """Import the framework of this name, a key of `FRAMEWORKS`."""
    framework: Framework = importlib.import_module(FRAMEWORKS[name].module).FRAMEWORK
    return framework
