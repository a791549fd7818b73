"""The position of a process of the pool: three numbers in an unnamed file that its parent reads.

A process writes its position before each file, of which there may be millions. Messages would keep
the parent busy; this write takes a microsecond, and the last position survives a crash.
"""

import os
import struct
import tempfile
from typing import BinaryIO

__all__ = ["open_position_file", "read_position", "write_position"]

_POSITION = struct.Struct("<qqq")
_NO_POSITION = (-1, 0, 0)


def open_position_file() -> BinaryIO:
    """Create the file for one process; it disappears once both processes have closed it."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    write_position(file.fileno(), *_NO_POSITION)
    return file


def write_position(descriptor: int, group: int, file: int, num_records: int) -> None:
    """Write the position: a file of a group, and the number of records of earlier files."""
    os.pwrite(descriptor, _POSITION.pack(group, file, num_records), 0)


def read_position(descriptor: int) -> tuple[int, int, int]:
    """Read the last position: group, file and records; the group is -1 before the first write."""
    group, file, num_records = _POSITION.unpack(os.pread(descriptor, _POSITION.size, 0))
    return group, file, num_records
