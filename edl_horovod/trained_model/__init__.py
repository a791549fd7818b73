"""The directory of a trained model: write it, read it, predict from it without the original zoo."""

from edl_horovod.trained_model.params import require_writable
from edl_horovod.trained_model.read import (
    TrainedModelFiles,
    load_spec,
    naming_versions,
    read,
    restore_weights,
)
from edl_horovod.trained_model.write import write

__all__ = [
    "TrainedModelFiles",
    "load_spec",
    "read",
    "require_writable",
    "restore_weights",
    "naming_versions",
    "write",
]
