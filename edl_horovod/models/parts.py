"""The parts of a model, each with the place where it was found."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.models.lookup import import_root
from edl_horovod.spec import ElasticDLSpec

__all__ = ["DEFAULTS", "METHODS", "REQUIRED", "Part", "Parts", "overrides_method", "part_of"]

METHODS = {
    "model": "create_model",
    "input_fn": "create_dataset",
    "loss": "create_loss",
    "optimizer": "create_optimizer",
    "metrics": "create_metrics",
    "callbacks": "create_callbacks",
}
"""The method of a spec that each part becomes."""
DEFAULTS = {"input_fn": "default_input", "loss": "default_loss", "optimizer": "default_optimizer"}
"""The attribute of a Keras class that provides each part."""
REQUIRED = tuple(DEFAULTS)
"""Parts that every model needs; the user can set them by these names."""


def overrides_method(kind: type[ElasticDLSpec], method: str) -> bool:
    """Whether a spec class overrides a `create_*` method of `ElasticDLSpec`."""
    return getattr(kind, method) is not getattr(ElasticDLSpec, method)


@dataclass(frozen=True)
class Part:
    """One part of a model: the user's object, and its name."""

    value: Any
    full_name: str
    """`folder.file.symbol`, or a name in Keras."""
    label: str
    """Name and file of the part, for messages."""


Parts = Mapping[str, Part]
"""Parts by the keys of `METHODS`."""


def part_of(value: Any, module: ModuleType, symbol: str, *, zoo: Path) -> Part:
    """A part that a file of a zoo defines; a symbol inside a class has dots."""
    file = Path(str(module.__file__))
    inside = file.relative_to(import_root(zoo)).with_suffix("").parts
    return Part(value, ".".join((*inside, symbol)), f"{symbol} of {file}")
