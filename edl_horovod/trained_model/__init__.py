"""The directory of a trained model: write it, read it, predict from it without the original zoo."""

from edl_horovod.files.output_dir import check_output
from edl_horovod.trained_model.read import (
    TrainedModelFiles,
    load_spec,
    read,
    restore_weights,
    versions_told,
)
from edl_horovod.trained_model.write import write

__all__ = [
    "TrainedModelFiles",
    "check_output",
    "load_spec",
    "read",
    "restore_weights",
    "versions_told",
    "write",
]
