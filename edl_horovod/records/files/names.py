"""The names of files that many programs write in parts."""

import re

__all__ = ["without_part"]

_PART = re.compile(r"-\d+-of-\d+$")


def without_part(name: str) -> str:
    """A file's name without the part that it is, as in `train.tfrecord-00000-of-00008`."""
    return _PART.sub("", name)
