"""Small files that appear whole or not at all."""

import os
from pathlib import Path
from typing import Any

from edl_horovod import json_text

__all__ = ["write_json", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a file; a reader sees the old one or the new one, never a part.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as one JSON text; see `write_text`."""
    write_text(path, json_text.dumps(value))
