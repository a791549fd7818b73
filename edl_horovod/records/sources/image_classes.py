"""The classes of pictures that lie in a folder for each class."""

import os
from collections.abc import Sequence

from edl_horovod.errors import DataError

__all__ = ["check_same_classes", "class_of"]


def class_of(path: str) -> str:
    """The class of a picture: the name of the folder that it lies in."""
    return os.path.basename(os.path.dirname(path if "://" in path else os.path.abspath(path)))


def check_same_classes(sets: Sequence[Sequence[str]]) -> None:
    """Refuse data and validation data whose classes differ: their numbers would, too.

    Raises:
        DataError: They do.
    """
    first, *others = [sorted({class_of(path) for path in paths}) for paths in sets]
    for other in others:
        if other != first:
            differing = sorted(set(first) ^ set(other))
            raise DataError(
                "The folders of data and validation_data have different classes, so the same"
                " number would mean different ones.",
                received=f"only one of them has {', '.join(differing[:5])}",
                cure="Let both have a folder with a picture for each class.",
            )
