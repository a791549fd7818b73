"""Grouping of variables for the broadcasts that copy a state; common to all frameworks."""

from collections.abc import Iterator, Sequence

from edl_horovod.frameworks.values import Variable, num_bytes

__all__ = ["LARGE_BYTES", "packs", "sizes"]

LARGE_BYTES = 1 << 18
"""Variables of this size and more are broadcast in place, without packing.

A collective costs about 1 ms; copying a smaller variable into a pack costs much less.
"""
_PACK_BYTES = 8 << 20
"""Less than malloc's largest threshold for mapped memory, so that packs reuse their buffers."""


def packs(variables: Sequence[Variable]) -> Iterator[list[Variable]]:
    """Yield the variables in order, as lists that fit in a pack; each has at least one variable."""
    pack: list[Variable] = []
    room = _PACK_BYTES
    for variable in variables:
        (size,) = sizes([variable])
        if pack and size > room:
            yield pack
            pack, room = [], _PACK_BYTES
        pack.append(variable)
        room -= size
    if pack:
        yield pack


def sizes(variables: Sequence[Variable]) -> list[int]:
    """Return the size of each variable in bytes."""
    return [num_bytes(variable.shape, variable.dtype) for variable in variables]
