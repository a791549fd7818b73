"""Elastic training of Keras and PyTorch models on a ring of Horovod workers.

The names below are imported when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl_horovod.api import build_image, evaluate, predict, prepare, submit, sweep, train
    from edl_horovod.errors import EdlError
    from edl_horovod.launch.client import Client
    from edl_horovod.spec import ElasticDLSpec, Mode, Phase, padded

__all__ = [
    "Client",
    "EdlError",
    "ElasticDLSpec",
    "Mode",
    "Phase",
    "__version__",
    "build_image",
    "evaluate",
    "padded",
    "predict",
    "prepare",
    "sql",
    "submit",
    "sweep",
    "train",
]

__version__ = "0.2.0"

_API = ("build_image", "evaluate", "predict", "prepare", "submit", "sweep", "train")
_MODULES = {
    "Client": "edl_horovod.launch.client",
    "EdlError": "edl_horovod.errors",
    **dict.fromkeys(("ElasticDLSpec", "Mode", "Phase", "padded"), "edl_horovod.spec"),
    **dict.fromkeys(_API, "edl_horovod.api"),
}


def __getattr__(name: str) -> Any:
    if name == "sql":
        return import_module("edl_horovod.sql")  # The package itself can be called.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "sql"})
