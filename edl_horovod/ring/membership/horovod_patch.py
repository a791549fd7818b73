"""What docker/horovod/survive-members.patch adds to Horovod's library (D8b, docs/adr/0003)."""

import ctypes
from pathlib import Path

__all__ = ["NEEDED_VERSION", "complaint", "give_up_connecting", "version"]

NEEDED_VERSION = 2
"""The patch's number that this package was written for: `horovod_edl_patch_version` in it."""


def _library() -> ctypes.CDLL:
    """The TensorFlow library that Horovod has loaded."""
    import horovod.tensorflow

    folder = Path(horovod.tensorflow.__file__).parent
    return ctypes.CDLL(str(next(folder.glob("mpi_lib.*"))))


def version() -> int:
    """The patch's number in this Horovod; 0 where there is no patch, or one without a number."""
    try:
        return ctypes.c_int.in_dll(_library(), "horovod_edl_patch_version").value
    except ValueError:
        return 0


def complaint(found: int) -> str | None:
    """What a Horovod will not do for this package; None where nothing is missing.

    Args:
        found: What `version` says.
    """
    if found >= NEEDED_VERSION:
        return None
    return (
        "This Horovod is not patched as this version of edl_horovod needs it. Received: "
        f"patch={found or 'none, or one without a number'}; needed: patch={NEEDED_VERSION}. A "
        "member that dies or hangs while a ring forms or in a large collective may end every "
        "survivor, a lost one may hold up the others until a time-out, and no ring may form over "
        "hosts whose own names lead to 127.0.0.1. Build Horovod again: "
        "`python docker/horovod/build_wheel.py --install`."
    )


def give_up_connecting() -> None:
    """Make a forming in another thread fail soon if it still waits for members to connect.

    Nothing happens where none does, and with a Horovod that is not patched.
    """
    give_up = getattr(_library(), "horovod_edl_give_up_connecting", None)
    if give_up is not None:
        give_up()
