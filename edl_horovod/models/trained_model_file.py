"""Read the description of a trained model, without its parameters and without a framework."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from edl_horovod.errors import DataError
from edl_horovod.files import json_text
from edl_horovod.proto.trained_model_pb2 import TrainedModel

FILE_NAME = "trained_model.pb"
ADAPTED_FILE = "adapted.json"
"""Holds the value that a model's `adapt` returned for its training data."""


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


def write_adapted(folder: Path, value: Any) -> None:
    """Write the value that a model's `adapt` returned into a folder; None writes nothing.

    Raises:
        OSError: The file cannot be written.
    """
    if value is not None:
        (folder / ADAPTED_FILE).write_text(json_text.dumps(value) + "\n")


def read_adapted(folder: Path) -> Any:
    """The value that a model's `adapt` returned; None if the folder has none.

    Raises:
        DataError: The file is damaged.
    """
    file = folder / ADAPTED_FILE
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} is damaged: {error}.", hint="Copy the trained model again, or train it again."
        ) from error
