"""Adds a step's tensors over the ring in buckets, each as soon as it is made (DESIGN D17)."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from edl_horovod.frameworks.keras.collectives import sum_grouped

__all__ = ["Bucket", "in_buckets", "sum_over_ring"]


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel together."""

    name: str
    """Pairs the bucket with that of the other ranks."""
    places: tuple[int, ...]
    """Of its tensors among all."""


def in_buckets(tensors: Sequence[tf.Tensor], most_bytes: int, name: str) -> list[Bucket]:
    """Deal tensors out to buckets, last one first: that is the order in which gradients come.

    All tensors of a bucket have the same type. One that is larger than a bucket has it for itself.

    Args:
        tensors: Of known shapes, the same on all ranks.
        most_bytes: Of a bucket.
        name: Begins the buckets' names.
    """
    buckets: list[Bucket] = []
    places: list[int] = []
    room = 0

    def close() -> None:
        if places:
            buckets.append(Bucket(f"{name}.{len(buckets)}", tuple(places)))
            places.clear()

    for place in reversed(range(len(tensors))):
        tensor = tensors[place]
        size = tensor.shape.num_elements() * tensor.dtype.size
        if places and (size > room or tensor.dtype != tensors[places[-1]].dtype):
            close()
        room = most_bytes - size if not places else room - size
        places.append(place)
    close()
    return buckets


def sum_over_ring(tensors: Sequence[tf.Tensor], most_bytes: int, name: str) -> list[tf.Tensor]:
    """Sum each tensor over the ring, a bucket at a time, while others are still being made.

    Args:
        tensors: Same shapes and types on all ranks, in the order of the variables.
        most_bytes: Of a bucket.
        name: Pairs the calls of the ranks; functions that may meet in one collective share it.
    """
    reduced = list(tensors)
    for bucket in in_buckets(tensors, most_bytes, name):
        sums = sum_grouped([tensors[place] for place in bucket.places], bucket.name)
        for place, total in zip(bucket.places, sums, strict=True):
            reduced[place] = total
    return reduced
