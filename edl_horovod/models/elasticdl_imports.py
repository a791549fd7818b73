"""What model files import from ElasticDL, where ElasticDL is not installed.

A file written for ElasticDL, or after its documents, imports `Mode` and a few classes. These names
are given here, so that such a file runs as it is; an installed ElasticDL comes first.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["BasePredictionOutputsProcessor", "install"]

_SPEC = "edl_horovod.spec"
_CALLBACKS = "edl_horovod.callbacks"
_GIVEN: dict[str, dict[str, tuple[str, str]]] = {
    "elastic.python.training": {"ElasticDLSpec": (_SPEC, "ElasticDLSpec"), "Mode": (_SPEC, "Mode")},
    "elasticdl.python.common.constants": {
        "ElasticDLSpec": (_SPEC, "ElasticDLSpec"),
        "Mode": (_SPEC, "Mode"),
    },
    "elasticdl.python.elasticdl.callbacks": {
        "LearningRateScheduler": (_CALLBACKS, "LearningRateScheduler"),
        "MaxStepsStopping": (_CALLBACKS, "MaxSteps"),
    },
    "elasticdl.python.worker.prediction_outputs_processor": {
        "BasePredictionOutputsProcessor": (__name__, "BasePredictionOutputsProcessor")
    },
}
"""Names by the module that they are imported from, each with the module and name of ours."""


class BasePredictionOutputsProcessor(ABC):
    """Base of a class that takes what a model predicts."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: str) -> None:
        """Take the outputs of a batch."""


class _Finder(MetaPathFinder, Loader):
    """Makes the modules of the list above, and the packages that they are in."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_package = any(module.startswith(f"{name}.") for module in _GIVEN)
        return (
            ModuleSpec(name, self, is_package=is_package) if is_package or name in _GIVEN else None
        )

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for name, (place, ours) in _GIVEN.get(module.__name__, {}).items():
            setattr(module, name, getattr(importlib.import_module(place), ours))


def install() -> None:
    """Give the names to every import from now on; once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
