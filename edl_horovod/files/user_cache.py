"""The user's cache folder, whose contents may be removed at any time and are rebuilt."""

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """Return the cache folder of edl_horovod (XDG Base Directory Specification); it may not exist.

    Raises:
        RuntimeError: This user has no home directory.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "edl_horovod"
