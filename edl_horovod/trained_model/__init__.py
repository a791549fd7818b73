"""The directory of a trained model: write it, read it, predict from it without the original zoo."""

from edl_horovod.trained_model.directory import (
    ADAPTED_FILE,
    TrainedModelFiles,
    load_spec,
    naming_versions,
    read,
    read_adapted,
    restore_weights,
    write,
    write_adapted,
)
from edl_horovod.trained_model.params import require_writable

__all__ = [
    "ADAPTED_FILE",
    "TrainedModelFiles",
    "load_spec",
    "naming_versions",
    "read",
    "read_adapted",
    "require_writable",
    "restore_weights",
    "write",
    "write_adapted",
]
