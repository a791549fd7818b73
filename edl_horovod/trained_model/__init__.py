"""The directory of a trained model: write it, read it, predict from it without the original zoo."""

from edl_horovod.trained_model.directory import (
    TrainedModelFiles,
    load_spec,
    naming_versions,
    read,
    restore_weights,
    write,
)
from edl_horovod.trained_model.params import require_writable

__all__ = [
    "TrainedModelFiles",
    "load_spec",
    "naming_versions",
    "read",
    "require_writable",
    "restore_weights",
    "write",
]
