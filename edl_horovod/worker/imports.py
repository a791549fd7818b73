"""Imports what a worker needs and what takes long, before anything is initialised."""

import gc
import importlib
import os

from edl_horovod.config.frameworks import require_backend
from edl_horovod.config.schema import JobConfig
from edl_horovod.models.framework_name import framework_name

__all__ = ["import_all"]


def import_all(config: JobConfig) -> None:
    """Import nothing of the user's, and nothing that starts a thread.

    Raises:
        ConfigError: Keras is asked to compute with a backend that the ring does not have.
    """
    require_backend(framework_name(config), os.environ)
    # Read at import by TensorFlow, and at every trace of a collective by Horovod.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    os.environ["HOROVOD_ELASTIC"] = "1"
    # A bucket is one message already: fusing several would only make Horovod's buffer larger.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(config.train.bucket_bytes))
    gc.disable()
    try:
        importlib.import_module("edl_horovod.worker.stand_in")
        importlib.import_module("edl_horovod.tasks.warm").framework_of(config)
        # It lives as long as the process: the collector need not look through it again.
        gc.freeze()
    finally:
        gc.enable()
