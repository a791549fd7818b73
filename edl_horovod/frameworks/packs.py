"""How variables are dealt out to the collectives that copy a state, the same for all frameworks."""

from collections.abc import Iterator, Sequence

from edl_horovod.frameworks.values import Variable, num_bytes

__all__ = ["LARGE_BYTES", "packs", "sizes"]

LARGE_BYTES = 1 << 18
"""From here on a variable is copied in place; a collective costs some 1 ms, a copy much less."""
_PACK_BYTES = 8 << 20
"""Below malloc's largest threshold for mapped memory: the buffers of one pack serve the next."""


def packs(variables: Sequence[Variable]) -> Iterator[list[Variable]]:
    """The variables in order, as many at a time as have room in a pack; at least one."""
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
    """What their values take, in bytes."""
    return [num_bytes(each.shape, each.dtype) for each in variables]
