"""Where a process of the pool is: three numbers in a file without a name that its starter reads.

It says so before each of perhaps millions of files. A message each time would keep its starter
busy; this costs a microsecond, and what was written last is there when the process has died.
"""

import os
import struct
import tempfile
from typing import BinaryIO

__all__ = ["open_place_file", "read_place", "write_place"]

_PLACE = struct.Struct("<qqq")
_NOWHERE = (-1, 0, 0)


def open_place_file() -> BinaryIO:
    """Make the file for one process; it goes when both have closed it."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    write_place(file.fileno(), *_NOWHERE)
    return file


def write_place(descriptor: int, group: int, file: int, num_records: int) -> None:
    """Say where the process is.

    Args:
        descriptor: Of the file.
        group: Number of the group.
        file: Number of the file in it.
        num_records: Records that the group's files before gave.
    """
    os.pwrite(descriptor, _PLACE.pack(group, file, num_records), 0)


def read_place(descriptor: int) -> tuple[int, int, int]:
    """Group, file and records, as they were written last; group -1 before the first time."""
    group, file, num_records = _PLACE.unpack(os.pread(descriptor, _PLACE.size, 0))
    return group, file, num_records
