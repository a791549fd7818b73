"""Stand-ins for the names that model files import from ElasticDL.

A file that was written for ElasticDL imports `Mode`, some classes, and layers of its preprocessing
library. This module provides them, so that such a file runs unchanged; an installed ElasticDL takes
precedence.
"""

import importlib
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError

__all__ = [
    "BasePredictionOutputsProcessor",
    "MaxComputeConfig",
    "ODPSWriter",
    "RecordIODataReader",
    "declare_model_inputs",
    "default_logger",
    "install",
    "is_odps_configured",
]

_SPEC = "edl_horovod.spec"
_CALLBACKS = "edl_horovod.callbacks"
_COLUMNS = "edl_horovod.frameworks.keras.elasticdl.feature_columns"
_EMBEDDINGS = "edl_horovod.frameworks.keras.elasticdl.embeddings"
_PREPROCESSING = "edl_horovod.frameworks.keras.elasticdl.preprocessing"
_LAYERS = {
    "concatenate_with_offset": "ConcatenateWithOffset",
    "discretization": "Discretization",
    "hashing": "Hashing",
    "index_lookup": "IndexLookup",
    "log_round": "LogRound",
    "normalizer": "Normalizer",
    "round_identity": "RoundIdentity",
    "to_number": "ToNumber",
    "to_ragged": "ToRagged",
    "to_sparse": "ToSparse",
}
"""The preprocessing layers, by the modules of `elasticdl_preprocessing.layers`."""

_STAND_INS: dict[str, dict[str, tuple[str, str]]] = {
    "elastic.python.training": {"ElasticDLSpec": (_SPEC, "ElasticDLSpec"), "Mode": (_SPEC, "Mode")},
    "elasticdl.python.common.constants": {
        "ElasticDLSpec": (_SPEC, "ElasticDLSpec"),
        "MaxComputeConfig": (__name__, "MaxComputeConfig"),
        "Mode": (_SPEC, "Mode"),
    },
    "elasticdl.python.common.log_utils": {"default_logger": (__name__, "default_logger")},
    "elasticdl.python.data.odps_io": {
        "ODPSWriter": (__name__, "ODPSWriter"),
        "is_odps_configured": (__name__, "is_odps_configured"),
    },
    "elasticdl.python.data.reader.recordio_reader": {
        "RecordIODataReader": (__name__, "RecordIODataReader")
    },
    "elasticdl.python.elasticdl.callbacks": {
        "LearningRateScheduler": (_CALLBACKS, "LearningRateScheduler"),
        "MaxStepsStopping": (_CALLBACKS, "MaxSteps"),
    },
    "elasticdl.python.elasticdl.feature_column.feature_column": {
        "embedding_column": (_COLUMNS, "embedding_column")
    },
    "elasticdl.python.elasticdl.layers.embedding": {"Embedding": (_EMBEDDINGS, "Embedding")},
    "elasticdl.python.worker.prediction_outputs_processor": {
        "BasePredictionOutputsProcessor": (__name__, "BasePredictionOutputsProcessor")
    },
    "elasticdl_preprocessing.feature_column.feature_column": {
        "concatenated_categorical_column": (_COLUMNS, "concatenated_categorical_column")
    },
    "elasticdl_preprocessing.layers": {
        **{name: (_PREPROCESSING, name) for name in _LAYERS.values()},
        "Embedding": (_EMBEDDINGS, "SparseEmbedding"),
        "SparseEmbedding": (_EMBEDDINGS, "SparseEmbedding"),
    },
    **{
        f"elasticdl_preprocessing.layers.{module}": {name: (_PREPROCESSING, name)}
        for module, name in _LAYERS.items()
    },
    "elasticdl_preprocessing.layers.sparse_embedding": {
        "SparseEmbedding": (_EMBEDDINGS, "SparseEmbedding")
    },
    "elasticdl_preprocessing.utils.decorators": {
        "declare_model_inputs": (__name__, "declare_model_inputs")
    },
}
"""Imported names by their ElasticDL module, each with our module and name."""


class BasePredictionOutputsProcessor(ABC):
    """Base of a class that processes the predictions of a model."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: str) -> None:
        """Process the predictions of a batch."""


class MaxComputeConfig:
    """Environment variables of a connection to MaxCompute tables."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"


def is_odps_configured() -> bool:
    """Whether the environment names a MaxCompute project and who may use it."""
    needed = (
        MaxComputeConfig.PROJECT_NAME,
        MaxComputeConfig.ACCESS_ID,
        MaxComputeConfig.ACCESS_KEY,
    )
    return all(name in os.environ for name in needed)


class ODPSWriter:
    """Would write to a MaxCompute table."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            UserCodeError: Always.
        """
        raise UserCodeError(
            "Predictions are not written to MaxCompute tables here.",
            hint=f"Unset {MaxComputeConfig.ACCESS_ID}, and take the predictions from `output`.",
        )


class RecordIODataReader:
    """Would read records in the model's file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            UserCodeError: Always.
        """
        raise UserCodeError(
            "A model's file does not read its records here: the job does.",
            hint="Give the files in `data`.",
        )


def declare_model_inputs(*names: str) -> Any:
    """A decorator that writes down how the inputs of a model class are called."""

    def named(kind: type) -> type:
        kind._model_inputs = list(names)  # type: ignore[attr-defined]  # ElasticDL's name for it.
        return kind

    return named


default_logger = logging.getLogger("elasticdl")


class _Finder(MetaPathFinder, Loader):
    """Imports the modules listed above and their packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_package = any(module.startswith(f"{name}.") for module in _STAND_INS)
        return (
            ModuleSpec(name, self, is_package=is_package)
            if is_package or name in _STAND_INS
            else None
        )

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for name, (our_module, our_name) in _STAND_INS.get(module.__name__, {}).items():
            setattr(module, name, getattr(importlib.import_module(our_module), our_name))


def install() -> None:
    """Provide the names to all later imports; further calls do nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
