"""Tensors that share a collective: gradients in buckets (D17), and variables in packs.

Every rank of a ring runs the same collectives in every step, even if it has no examples. So the
content of a bucket depends on the variables alone. Packs are for the broadcasts that copy a state.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from edl_horovod.frameworks.values import Variable, num_bytes

__all__ = ["LARGE_BYTES", "NAME", "Bucket", "in_buckets", "packs", "byte_sizes"]

NAME = "edl.step"
"""Prefix of the names of a step's collectives, which pair ranks with and without examples."""

LARGE_BYTES = 1 << 18
"""Variables of this size and more are broadcast in place, without packing.

A collective costs about 1 ms; copying a smaller variable into a pack costs much less.
"""
_PACK_BYTES = 8 << 20
"""Less than malloc's largest threshold for mapped memory, so that packs reuse their buffers."""


@dataclass(frozen=True)
class Bucket:
    """Tensors that are reduced together."""

    name: str
    """Pairs the bucket with the same one on the other ranks."""
    places: tuple[int, ...]
    """Indices of its tensors in the list of all tensors."""


def in_buckets(
    sizes: Sequence[int], kinds: Sequence[Hashable], max_bytes: int, name: str
) -> list[Bucket]:
    """Assign tensors to buckets, the last one first: the backward pass yields them in this order.

    All tensors of a bucket have the same kind. A tensor larger than a bucket has a bucket of its
    own.

    Args:
        sizes: Size of each tensor in bytes, the same on all ranks.
        kinds: For each tensor, what it must have in common with others in its bucket (its type).
        max_bytes: Maximum size of a bucket.
        name: Prefix of the buckets' names.
    """
    buckets: list[Bucket] = []
    indices: list[int] = []
    free_bytes = max_bytes

    def close() -> None:
        if indices:
            buckets.append(Bucket(f"{name}.{len(buckets)}", tuple(indices)))
            indices.clear()

    for index in reversed(range(len(sizes))):
        size = sizes[index]
        if indices and (size > free_bytes or kinds[index] != kinds[indices[-1]]):
            close()
        free_bytes = (free_bytes if indices else max_bytes) - size
        indices.append(index)
    close()
    return buckets


def packs(variables: Sequence[Variable]) -> Iterator[list[Variable]]:
    """Yield the variables in order, as lists that fit in a pack; each has at least one variable."""
    pack: list[Variable] = []
    room = _PACK_BYTES
    for variable in variables:
        (size,) = byte_sizes([variable])
        if pack and size > room:
            yield pack
            pack, room = [], _PACK_BYTES
        pack.append(variable)
        room -= size
    if pack:
        yield pack


def byte_sizes(variables: Sequence[Variable]) -> list[int]:
    """Return the size of each variable in bytes."""
    return [num_bytes(variable.shape, variable.dtype) for variable in variables]
