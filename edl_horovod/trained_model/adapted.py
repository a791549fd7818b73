"""What a model's `adapt` found in its training data, beside its code."""

import json
from pathlib import Path
from typing import Any

from edl_horovod.errors import DataError
from edl_horovod.files import json_text

__all__ = ["FILE_NAME", "read_adapted", "write_adapted"]

FILE_NAME = "adapted.json"


def write_adapted(folder: Path, value: Any) -> None:
    """Write the value into a folder; nothing for None.

    Raises:
        OSError: It cannot be written.
    """
    if value is not None:
        (folder / FILE_NAME).write_text(json_text.dumps(value) + "\n")


def read_adapted(folder: Path) -> Any:
    """The value in a folder; None where there is none.

    Raises:
        DataError: The file is damaged.
    """
    file = folder / FILE_NAME
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} is damaged: {error}.", hint="Copy the trained model again, or train it again."
        ) from error
