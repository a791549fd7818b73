"""The header of a file of tensors in the safetensors format: eight bytes of length, then JSON."""

import json
from typing import Any, BinaryIO

__all__ = ["LENGTH_BYTES", "METADATA", "read_metadata"]

LENGTH_BYTES = 8
"""Of the header's length, which comes first, little-endian."""
METADATA = "__metadata__"
"""The header's key of text about the whole file."""


def read_metadata(stream: BinaryIO) -> dict[str, Any]:
    """Read what a header says about the whole file, which nobody has checked.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no such header, or it is cut off.
    """
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    try:
        found: dict[str, Any] = dict(json.loads(stream.read(length))[METADATA])
    except (KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"no header of a file of tensors: {error!r}") from error
    return found
