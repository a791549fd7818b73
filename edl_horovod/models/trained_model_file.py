"""Read the description of a trained model, without its parameters and without a framework."""

from pathlib import Path

from google.protobuf.message import DecodeError

from edl_horovod.errors import DataError
from edl_horovod.proto.trained_model_pb2 import TrainedModel

__all__ = ["FILE_NAME", "damaged_model", "read_message"]

FILE_NAME = "trained_model.pb"


def read_message(path: Path) -> TrainedModel:
    """Read the description of a trained model from its directory.

    Raises:
        OSError: The file cannot be read.
        DataError: The file is damaged.
    """
    try:
        return TrainedModel.FromString((path / FILE_NAME).read_bytes())
    except DecodeError as e:
        raise damaged_model(path, f"{FILE_NAME}: {e}") from e


def damaged_model(path: Path, why: str) -> DataError:
    """The error for a damaged trained model; `why` is a clause with the reason."""
    why = why.removesuffix(".")
    return DataError(
        f"The trained model {path} is damaged: {why}.", hint="Copy it again, or train it again."
    )
