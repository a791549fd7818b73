"""Stand-ins for the names that model files import from ElasticDL.

A file that was written for ElasticDL imports `Mode` and a few classes. This module provides them,
so that such a file runs unchanged; an installed ElasticDL takes precedence.
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
"""Imported names by their ElasticDL module, each with our module and name."""


class BasePredictionOutputsProcessor(ABC):
    """Base of a class that processes the predictions of a model."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: str) -> None:
        """Process the predictions of a batch."""


class _Finder(MetaPathFinder, Loader):
    """Imports the modules listed above and their packages."""

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
    """Provide the names to all later imports; further calls do nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
