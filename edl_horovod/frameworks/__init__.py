"""The frameworks that models are written in; only a framework's own folder imports it."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edl_horovod.frameworks.base import Framework

__all__ = ["FRAMEWORKS", "find_framework"]

FRAMEWORKS = {"keras": "edl_horovod.frameworks.keras.framework"}
"""The module of each framework by its name; `FRAMEWORK` in it is a `base.Framework`."""


def find_framework(name: str) -> "Framework":
    """Import the framework of this name, a key of `FRAMEWORKS`."""
    framework: Framework = importlib.import_module(FRAMEWORKS[name]).FRAMEWORK
    return framework
