"""The table of the frameworks in which a model may be written; it imports none of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edl_horovod.extensions import Table

__all__ = ["DEFAULT", "FRAMEWORKS", "FrameworkEntry", "ModelKind", "model_kinds"]


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """The meaning of a `name` in the section `model:` of a model in files."""

    framework: str
    module: str
    """The last part of `path`, where the section has one."""
    keys: tuple[str, ...]
    """The keys that its `spec` may have beside those of all kinds."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Those of them that set an option of the training themselves, with the option's name."""


def _accept(_variables: Mapping[str, str]) -> None:
    """Accept any environment."""


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """Facts about a framework that are known without importing it."""

    module: str
    """The module whose `FRAMEWORK` is a `frameworks.base.Framework`; only a worker imports it."""
    packages: tuple[str, ...]
    """Packages that a worker must be able to import, the framework itself first.

    The results of a trained model depend on their versions.
    """
    extra: str
    """The extra of this package that installs them."""
    imports: tuple[str, ...] = ()
    """Top-level packages that only model files written in this framework import."""
    training_imports: tuple[str, ...] = ()
    """Modules that the framework itself imports only in a training, and then in each."""
    horovod: str = ""
    """Horovod's package for this framework; empty where it needs none."""
    file_models: str = ""
    """The module for models in files, a `models.spec_zoo.FileModels`."""
    model_kinds: Mapping[str, ModelKind] = field(default_factory=dict)
    """The kinds of models in files, by the `name` in their section `model:`."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Settings of a training that the framework refuses, each with the rest of a sentence."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that a worker sets before it imports the framework, unless they are set."""
    check_environment: Callable[[Mapping[str, str]], None] = _accept
    """Raises ConfigError for variables with which the framework's ring does not work."""


FRAMEWORKS: Table[FrameworkEntry] = Table(
    "frameworks",
    {},
    places={
        "keras": "edl_horovod.frameworks.keras.entry:ENTRY",
        "torch": "edl_horovod.frameworks.torch.entry:ENTRY",
    },
)
DEFAULT = "keras"
"""The framework of a model whose file imports no framework."""


def model_kinds() -> dict[str, ModelKind]:
    """The kinds of models in files of all frameworks, by the `name` in their section."""
    entries = FRAMEWORKS.loaded().values()
    return {name: kind for entry in entries for name, kind in entry.model_kinds.items()}
