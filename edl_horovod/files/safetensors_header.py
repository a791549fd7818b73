"""The header of a file of tensors in the safetensors format: eight bytes of length, then JSON."""

import json
from typing import Any, BinaryIO

__all__ = ["LENGTH_BYTES", "METADATA", "read_metadata"]

LENGTH_BYTES = 8
"""Size of the length of the header: a little-endian integer at the start of the file."""
METADATA = "__metadata__"
"""The header's key of text about the whole file."""


def read_metadata(stream: BinaryIO) -> dict[str, Any]:
    """Read the metadata of a file from its header, without checking the values.

    Raises:
        OSError: The file cannot be read.
        ValueError: The header is invalid or truncated.
    """
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    try:
        metadata: dict[str, Any] = dict(json.loads(stream.read(length))[METADATA])
    except (KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"not a valid header of a tensor file: {error!r}") from error
    return metadata
