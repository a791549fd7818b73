"""The position of a process of the pool: three numbers in an unnamed file that its parent reads.

A process writes it before each of perhaps millions of files. A message each time would keep the
parent busy; this write takes a microsecond, and the last one survives the death of the process.
"""

import os
import struct
import tempfile
from typing import BinaryIO

__all__ = ["open_position_file", "read_position", "write_position"]

_PLACE = struct.Struct("<qqq")
_NOWHERE = (-1, 0, 0)


def open_position_file() -> BinaryIO:
    """Make the file for one process; it disappears once both processes have closed it."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    write_position(file.fileno(), *_NOWHERE)
    return file


def write_position(descriptor: int, group: int, file: int, num_records: int) -> None:
    """Write the position: a file of a group, and the records that its earlier files gave."""
    os.pwrite(descriptor, _PLACE.pack(group, file, num_records), 0)


def read_position(descriptor: int) -> tuple[int, int, int]:
    """Read the last position: group, file and records; the group is -1 before the first write."""
    group, file, num_records = _PLACE.unpack(os.pread(descriptor, _PLACE.size, 0))
    return group, file, num_records
