"""Where a job's warm workers wait for horovodrun's processes, and what both say to each other."""

import os
import socket
import stat
from pathlib import Path

from edl_horovod.errors import ConfigError

__all__ = ["FOLDER", "MAX_BYTES", "TAKEN", "private_folder", "socket_folder"]

MAX_BYTES = 1 << 16
TAKEN = b"taken\n"
FOLDER = "warm"
"""In the job's directory; one folder a host is in it."""


def socket_folder(config: Path) -> Path:
    """Where this host's warm workers of a job wait; the job's directory may be on many hosts.

    Args:
        config: The job's `config.yaml`, in the job's directory.
    """
    return config.absolute().parent / FOLDER / socket.gethostname()


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter, or check that it is one; returns it.

    Raises:
        ConfigError: It is another user's, or open to others.
    """
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in (folder.parent, folder):
        status = path.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mode & 0o077:
            raise ConfigError(
                "Only its owner may enter the folder of the warm workers.",
                received=f"{path}, mode {stat.filemode(status.st_mode)}, of user {status.st_uid}",
                hint="Remove it.",
            )
    return folder
