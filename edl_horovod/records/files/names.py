"""The names of files that programs write as numbered parts."""

import re

__all__ = ["without_part"]

_PART = re.compile(r"-\d+-of-\d+$")


def without_part(name: str) -> str:
    """Remove the number of a part from a name such as `train.tfrecord-00000-of-00008`."""
    return _PART.sub("", name)
