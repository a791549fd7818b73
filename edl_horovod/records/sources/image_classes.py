"""The classes of image files, which are the names of their folders."""

import os
from collections.abc import Sequence

from edl_horovod.errors import DataError

__all__ = ["check_same_classes", "class_of"]


def class_of(path: str) -> str:
    """Return the class of an image file: the name of its folder."""
    return os.path.basename(os.path.dirname(path if "://" in path else os.path.abspath(path)))


def check_same_classes(sets: Sequence[Sequence[str]]) -> None:
    """Refuse data and validation data with different classes, whose numbers would differ, too.

    Raises:
        DataError: The classes differ.
    """
    first, *others = [sorted({class_of(path) for path in paths}) for paths in sets]
    for other in others:
        if other != first:
            differing = sorted(set(first) ^ set(other))
            raise DataError(
                "The folders of data and validation_data have different classes, so the same label"
                " would mean different classes.",
                received=f"only one of them has {', '.join(differing[:5])}",
                hint="Create a folder with at least one image for each class in both.",
            )
