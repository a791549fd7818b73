"""Which gradients travel together over the ring, and as what; the same for all frameworks (D17).

Every rank of a ring runs the same collectives in every step, also one without examples: what a
bucket holds follows from the variables alone.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["NAME", "Bucket", "Reduction", "in_buckets"]

NAME = "edl.step"
"""Begins the names of a step's collectives; ranks with and without examples meet under them."""


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel together."""

    name: str
    """Pairs the bucket with that of the other ranks."""
    places: tuple[int, ...]
    """Of its tensors among all."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How a step's sums are added over the ring."""

    bucket_bytes: int = 4 << 20
    """Most bytes of gradients that travel together."""
    compression: str = "none"
    """What float32 gradients travel as: `none`, `bf16` or `fp16`."""
    batch_size: int = 1
    """About how many examples a sum is made of; float16 holds means rather than sums."""


def in_buckets(
    sizes: Sequence[int], kinds: Sequence[Hashable], most_bytes: int, name: str
) -> list[Bucket]:
    """Deal tensors out to buckets, last one first: that is the order in which gradients come.

    All tensors of a bucket are of one kind. One that is larger than a bucket has it for itself.

    Args:
        sizes: Bytes of each tensor, the same on all ranks.
        kinds: Of each tensor, as its type.
        most_bytes: Of a bucket.
        name: Begins the buckets' names.
    """
    buckets: list[Bucket] = []
    places: list[int] = []
    room = most_bytes

    def close() -> None:
        if places:
            buckets.append(Bucket(f"{name}.{len(buckets)}", tuple(places)))
            places.clear()

    for place in reversed(range(len(sizes))):
        size = sizes[place]
        if places and (size > room or kinds[place] != kinds[places[-1]]):
            close()
        room = (room if places else most_bytes) - size
        places.append(place)
    close()
    return buckets
