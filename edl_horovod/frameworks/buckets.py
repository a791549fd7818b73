"""Assignment of gradients to buckets that are reduced together; for all frameworks (D17).

Every rank of a ring runs the same collectives in every step, even if it has no examples. So the
content of a bucket depends on the variables alone.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["NAME", "Bucket", "in_buckets"]

NAME = "edl.step"
"""Prefix of the names of a step's collectives, which pair ranks with and without examples."""


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
