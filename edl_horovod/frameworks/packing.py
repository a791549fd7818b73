"""Tensors that share a collective: gradients in buckets (D17), and variables in packs.

Every rank of a ring runs the same collectives in every step, even if it has no examples. So the
content of a bucket depends on the variables alone. Packs are for the broadcasts that copy a state.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edl_horovod.frameworks.values import Array, Rows, Variable, num_bytes

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
    buckets: list[list[int]] = []
    free_bytes = 0
    for index in reversed(range(len(sizes))):
        size = sizes[index]
        if not buckets or size > free_bytes or kinds[index] != kinds[buckets[-1][-1]]:
            buckets.append([])
            free_bytes = max_bytes
        buckets[-1].append(index)
        free_bytes -= size
    return [Bucket(f"{name}.{number}", tuple(places)) for number, places in enumerate(buckets)]


class PackedBroadcasts(ABC):
    """The broadcasts of `base.Collectives`: large variables in place, small ones in packs."""

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Set every rank's variables to the values on the rank `root`."""
        large = [variable for variable in variables if self._is_large(variable)]
        if large:
            self._broadcast_in_place(large, root, name)
        # The first ones last, as buckets are filled from the end.
        small = [variable for variable in reversed(variables) if not self._is_large(variable)]
        sizes = [num_bytes(variable.shape, variable.dtype) for variable in small]
        for pack in in_buckets(sizes, [None] * len(sizes), _PACK_BYTES, f"{name}.pack"):
            rows = [Rows(small[place]) for place in pack.places]
            self._broadcast_packed(rows, 0, root, pack.name, writes_all=True)

    def broadcast_rows(self, rows: Sequence[Rows], number: int, root: int, name: str) -> int:
        """Set these rows to the root's values, and return its number, in one collective."""
        return self._broadcast_packed(rows, number, root, name, writes_all=False)

    def _broadcast_packed(
        self, rows: Sequence[Rows], number: int, root: int, name: str, *, writes_all: bool
    ) -> int:
        before = [self._bytes_of(part) for part in (*rows, Rows(Array(np.int64(number))))]
        received = self._broadcast_bytes(before, root, name)
        if received is None:
            return number
        for part, old, new in zip(rows, before, received, strict=False):
            # A write may change what later ones depend on, such as an optimizer's groups.
            if writes_all or not np.array_equal(old.numpy(), new.numpy()):
                self._write(part, new)
        return int(received[-1].numpy().copy().view(np.int64)[0])

    def _is_large(self, variable: Variable) -> bool:
        is_large = num_bytes(variable.shape, variable.dtype) >= LARGE_BYTES
        return is_large and self._can_be_in_place(variable)

    @abstractmethod
    def _can_be_in_place(self, variable: Variable) -> bool:
        """Whether a variable is a tensor that Horovod can write to."""

    @abstractmethod
    def _broadcast_in_place(self, variables: Sequence[Any], root: int, name: str) -> None:
        """Broadcast such variables, so that the network is never idle between them."""

    @abstractmethod
    def _bytes_of(self, rows: Rows) -> Any:
        """The bytes of rows on the host, as a tensor with one axis."""

    @abstractmethod
    def _broadcast_bytes(self, parts: Sequence[Any], root: int, name: str) -> Sequence[Any] | None:
        """Broadcast these bytes in one collective; return the root's parts, None on the root."""

    @abstractmethod
    def _write(self, rows: Rows, flat: Any) -> None:
        """Set rows from their bytes, a uint8 tensor on the host."""
