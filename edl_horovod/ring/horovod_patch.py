"""Whether the installed Horovod carries our patch (D8b, docs/adr/0003)."""

import mmap
from pathlib import Path

__all__ = ["is_patched", "library"]

MARK = b"TensorQueue14WaitForTensors"
"""Of the symbol that the newest change of docker/horovod/survive-members.patch adds."""


def library() -> Path:
    """Path of Horovod's TensorFlow library."""
    import horovod.tensorflow

    folder = Path(horovod.tensorflow.__file__).parent
    return next(folder.glob("mpi_lib.*"))


def is_patched(path: Path) -> bool:
    """Look for the patch's mark in a library.

    Args:
        path: The library; its name and version say nothing of patches.
    """
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(MARK) >= 0
