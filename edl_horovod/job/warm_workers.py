"""What launchers and warm workers agree on: sockets, messages, and the folder of the sockets.

A fork server forks workers for the launcher that started it. Under plain horovodrun the warm
workers of a host wait in a folder for the processes that horovodrun launches.
"""

import os
import socket
import stat
from pathlib import Path

from edl_horovod.errors import ConfigError

MAX_MESSAGE_BYTES = 1 << 16
FOLDER = "warm"
"""The folder in the job's directory that holds a folder of sockets for each host."""
TAKEN = b"taken\n"
"""The answer of a warm worker that takes the place of horovodrun's process."""
READY = b"ready"
"""The first message of a fork server, when it has imported everything."""


def socket_folder(config: Path) -> Path:
    """The folder of this host's sockets; the job's directory may be shared by many hosts.

    Args:
        config: The job's `config.yaml`, in the job's directory.
    """
    return config.absolute().parent / FOLDER / socket.gethostname()


def private_folder(folder: Path) -> Path:
    """Create a folder that only its owner may enter, or check an existing one; returns it.

    Raises:
        ConfigError: The folder belongs to another user, or others may enter it.
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
