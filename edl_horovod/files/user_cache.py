"""The user's cache: what may be removed at any time and is made again."""

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """Our folder in it, after the XDG Base Directory Specification; it may not be there yet.

    Raises:
        RuntimeError: This user has no home directory.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "edl_horovod"
