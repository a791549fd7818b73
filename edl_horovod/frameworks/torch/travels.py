"""Sums over the ring that go on beside the rest of the program.

A travel is a generator: it begins operations of Horovod, yields the handle of each, and is given
what the operation gave. All ranks run the same travels under the same names; the order in which a
rank begins them does not matter, as Horovod pairs them by their names.
"""

from collections.abc import Generator
from typing import Any, TypeAlias

import horovod.torch as hvd
import torch

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.torch.collectives import catch_failures
from edl_horovod.frameworks.torch.compression import compress, decompress

__all__ = ["Travel", "Travels", "sum_compressed", "sum_in_place"]

Travel: TypeAlias = Generator[int, Any, None]


class Travels:
    """Those of one step that are on their way."""

    def __init__(self) -> None:
        """Begin with none."""
        self._going: list[tuple[Travel, int]] = []
        self._failure: CollectiveFailed | None = None

    def begin(self, travel: Travel) -> None:
        """Set one out. Where it fails, `end` says so: this is called amid a backward pass."""
        if self._failure is None:
            self._step(travel, None)

    def complete(self, travel: Travel) -> None:
        """Set one out and wait for its end. Where it fails, `end` says so."""
        handle = None
        while self._failure is None:
            try:
                with catch_failures():
                    given = None if handle is None else hvd.synchronize(handle)
                    handle = travel.send(given)
            except CollectiveFailed as error:
                self._failure = error
            except StopIteration:
                return

    def go_on(self) -> None:
        """Let those take their next leg that have ended one; waits for nothing."""
        going, self._going = self._going, []
        for travel, handle in going:
            if self._failure is None and hvd.poll(handle):
                self._step(travel, handle)
            else:
                self._going.append((travel, handle))

    def end(self) -> None:
        """Wait until all have come to their end.

        Raises:
            CollectiveFailed: One could not. Nothing of the others writes to its tensors any more.
        """
        while self._going:
            going, self._going = self._going, []
            for travel, handle in going:
                self._step(travel, handle)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _step(self, travel: Travel, handle: int | None) -> None:
        try:
            with catch_failures():
                given = None if handle is None else hvd.synchronize(handle)
                if self._failure is None:
                    self._going.append((travel, travel.send(given)))
        except CollectiveFailed as error:
            self._failure = self._failure or error
        except StopIteration:
            pass


def sum_in_place(values: torch.Tensor, name: str) -> Travel:
    """Replace a rank's numbers by the sums over the ring, the same bits on all ranks.

    Args:
        values: float32, float64 or int64, in C order; of the same shape on all ranks.
        name: Pairs the calls of the ranks.
    """
    yield hvd.allreduce_async_(values, op=hvd.Sum, name=name)


def sum_compressed(values: torch.Tensor, name: str, compression: str) -> Travel:
    """Replace a rank's numbers by the sums over the ring, which travel in 16 bits a number.

    Each rank gets one part of the numbers from all ranks, adds these in float32, and gives the sum
    to all: as many bytes as a ring allreduce of the short numbers (its reduce-scatter and
    allgather), but each number is rounded twice on its way, however many ranks there are.

    Args:
        values: A row of float32, as many on all ranks.
        name: Pairs the calls of the ranks.
        compression: `bf16` or `fp16`. On their way as float16 numbers are divided by the number of
            ranks: it holds means rather than sums.
    """
    num_ranks = hvd.size()
    base, more = divmod(len(values), num_ranks)
    splits = torch.tensor([base + (rank < more) for rank in range(num_ranks)], dtype=torch.int32)
    mine = compress(values, compression, num_ranks)
    parts, _ = yield hvd.alltoall_async(mine, splits, name=f"{name}.parts")
    total = decompress(parts, compression).reshape(num_ranks, len(parts) // num_ranks).sum(0)
    whole = yield hvd.allgather_async(compress(total, compression), name=f"{name}.whole")
    values.copy_(decompress(whole, compression, num_ranks))
