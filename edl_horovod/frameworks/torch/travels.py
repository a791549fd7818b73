"""Asynchronous sums over the ring, which run beside the rest of the program.

A collective is a generator: it starts operations of Horovod one after the other, yields the handle
of each, and receives its result. All ranks run the same collectives under the same names. A rank
may start them in any order, as Horovod pairs operations by name.
"""

from collections.abc import Generator
from typing import Any, TypeAlias

import horovod.torch as hvd
import torch

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.torch.collectives import catch_failures
from edl_horovod.frameworks.torch.compression import compress, decompress

__all__ = ["Collective", "PendingCollectives", "sum_compressed", "sum_in_place"]

Collective: TypeAlias = Generator[int, Any, None]


class PendingCollectives:
    """Unfinished collectives of one step."""

    def __init__(self) -> None:
        """Create an empty set."""
        self._pending: list[tuple[Collective, int]] = []
        self._failure: CollectiveFailed | None = None

    def start(self, collective: Collective) -> None:
        """Start a collective. `wait` raises failures, as this is called in a backward pass."""
        if self._failure is None:
            self._advance(collective, None)

    def run(self, collective: Collective) -> None:
        """Run a collective to its end. `wait` raises failures."""
        handle = None
        while self._failure is None:
            try:
                with catch_failures():
                    result = None if handle is None else hvd.synchronize(handle)
                    handle = collective.send(result)
            except CollectiveFailed as error:
                self._failure = error
            except StopIteration:
                return

    def poll(self) -> None:
        """Advance collectives whose current operation has finished; does not block."""
        pending, self._pending = self._pending, []
        for collective, handle in pending:
            if self._failure is None and hvd.poll(handle):
                self._advance(collective, handle)
            else:
                self._pending.append((collective, handle))

    def wait(self) -> None:
        """Wait until all collectives have finished.

        Raises:
            CollectiveFailed: One of them failed. None of them writes to its tensors any more.
        """
        while self._pending:
            pending, self._pending = self._pending, []
            for collective, handle in pending:
                self._advance(collective, handle)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _advance(self, collective: Collective, handle: int | None) -> None:
        try:
            with catch_failures():
                result = None if handle is None else hvd.synchronize(handle)
                if self._failure is None:
                    self._pending.append((collective, collective.send(result)))
        except CollectiveFailed as error:
            self._failure = self._failure or error
        except StopIteration:
            pass


def sum_in_place(values: torch.Tensor, name: str) -> Collective:
    """Replace a rank's values by the ring's sums, with the same bits on all ranks.

    Args:
        values: float32, float64 or int64, contiguous, with the same shape on all ranks.
        name: Pairs the calls of the ranks.
    """
    yield hvd.allreduce_async_(values, op=hvd.Sum, name=name)


def sum_compressed(values: torch.Tensor, name: str, compression: str) -> Collective:
    """Replace a rank's values by the ring's sums, sent with 16 bits for each number.

    Each rank receives one part of the values from all ranks, sums it in float32, and sends the sum
    to all ranks. That is the same number of bytes as in a ring allreduce of 16-bit numbers (its
    reduce-scatter and allgather), but each number is rounded only twice, for any number of ranks.

    Args:
        values: float32, one axis, of the same length on all ranks.
        name: Pairs the calls of the ranks.
        compression: `bf16` or `fp16`. With `fp16`, values are divided by the number of ranks, so
            that their sums fit in float16.
    """
    num_ranks = hvd.size()
    base, remainder = divmod(len(values), num_ranks)
    splits = torch.tensor(
        [base + (rank < remainder) for rank in range(num_ranks)], dtype=torch.int32
    )
    compressed = compress(values, compression, num_ranks)
    parts, _ = yield hvd.alltoall_async(compressed, splits, name=f"{name}.parts")
    total = decompress(parts, compression).reshape(num_ranks, len(parts) // num_ranks).sum(0)
    gathered = yield hvd.allgather_async(compress(total, compression), name=f"{name}.whole")
    values.copy_(decompress(gathered, compression, num_ranks))
