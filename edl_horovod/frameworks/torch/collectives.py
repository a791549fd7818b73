"""Horovod's collectives on PyTorch tensors.

This module uses only Horovod's operations on single tensors. Horovod's optimizer and state classes
leave the sums of a failed step in the gradients, and its grouped operations report only the
completion of the last tensor.

Some collectives run beside the rest of the program. Such a `Collective` is a generator: it starts
operations of Horovod one after the other, yields the handle of each, and receives its result. All
ranks run the same collectives under the same names. A rank may start them in any order, as Horovod
pairs operations by name.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import horovod.torch as hvd
import numpy as np
import torch
from numpy.typing import NDArray

from edl_horovod.config.schema import Compression
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.packing import PackedBroadcasts
from edl_horovod.frameworks.torch.variables import TorchVariable, bytes_of, from_numpy, to_numpy
from edl_horovod.frameworks.values import Array, Rows, Variable, checksum

__all__ = [
    "HOROVOD",
    "Collective",
    "PendingCollectives",
    "TorchCollectives",
    "catch_failures",
    "sendable",
    "sum_compressed",
    "sum_in_place",
]

HOROVOD = Horovod(hvd)
catch_failures = HOROVOD.catch_failures

Collective: TypeAlias = Generator[int, Any, None]

_COMPRESSED_DTYPES: dict[Compression, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TRANSFER_DTYPE = torch.int16
"""Horovod copies integers unchanged; it does not support bfloat16, and sums float16 in float16."""
_TAKES_GPU_TENSORS = bool(hvd.cuda_built() or hvd.rocm_built())
"""False where Horovod was built on a machine without CUDA's toolkit."""


class TorchCollectives(PackedBroadcasts):
    """Implements `base.Collectives`; tensors may be on any device."""

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Return the sum of the ranks' arrays, which have the same shape and type."""
        total = from_numpy(values.copy())
        _run(hvd.allreduce_async_, total, op=hvd.Sum, name=name)
        return to_numpy(total)

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers from each rank; shape (size, len(row)), in rank order."""
        local = torch.tensor([list(row)], dtype=torch.int64)
        rows: NDArray[np.int64] = to_numpy(_run(hvd.allgather_async, local, name=name))
        return rows

    def exchange(self, rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Send a row of bytes to each rank, and return those received, both in rank order."""
        splits = torch.ones(len(rows), dtype=torch.int32)
        received, _ = _run(hvd.alltoall_async, from_numpy(rows), splits, name=name)
        received_rows: NDArray[np.uint8] = to_numpy(received)
        return received_rows

    def blank_like(self, variables: Sequence[Variable]) -> list[Variable]:
        """Create variables of the same shapes and types, with arbitrary values."""
        return [
            TorchVariable(variable.name, torch.empty_like(variable.tensor))
            if isinstance(variable, TorchVariable)
            else Array(np.zeros_like(variable.numpy()))
            for variable in variables
        ]

    def checksum(self, variable: Variable) -> int:
        """Return a 63-bit checksum of a variable's value."""
        return checksum(self._bytes_of(Rows(variable)).numpy())

    def _can_be_in_place(self, variable: Variable) -> bool:
        return isinstance(variable, TorchVariable) and variable.tensor.is_contiguous()

    def _broadcast_in_place(self, variables: Sequence[Any], root: int, name: str) -> None:
        # All start before the first wait, so that the network is never idle. The index is part of
        # the name, as the variables' own names may differ between processes.
        pending = PendingCollectives()
        try:
            for number, variable in enumerate(variables):
                pending.start(_broadcast(bytes_of(variable.tensor), root, f"{name}.{number}"))
        finally:  # Also after another error, as Horovod writes into the tensors until it is done.
            pending.wait()

    def _broadcast_bytes(
        self, parts: Sequence[torch.Tensor], root: int, name: str
    ) -> Sequence[torch.Tensor] | None:
        packed = torch.cat(list(parts))
        _run(hvd.broadcast_async_, packed, root, name=name)
        return None if hvd.rank() == root else packed.split([len(part) for part in parts])

    def _bytes_of(self, rows: Rows) -> torch.Tensor:
        return bytes_of(_tensor_of(rows)).cpu()

    def _write(self, rows: Rows, flat: torch.Tensor) -> None:
        variable = rows.variable
        if isinstance(variable, TorchVariable):
            target = _tensor_of(rows)
            # The copy aligns the bytes, which `view` requires.
            target.copy_(flat.clone().view(target.dtype).reshape(target.shape))
            return
        changed = variable.numpy().copy()
        target = changed if rows.last is None else changed[rows.first : rows.last]
        target.reshape(-1).view(np.uint8)[:] = flat.numpy()
        variable.assign(changed)


class PendingCollectives:
    """Unfinished collectives of one step."""

    def __init__(self) -> None:
        self._pending: list[tuple[Collective, int]] = []
        self._failure: CollectiveFailed | None = None

    def start(self, collective: Collective) -> None:
        """Start a collective. `wait` raises failures, as this is called in a backward pass."""
        self._advance(collective, None)

    def run(self, collective: Collective) -> None:
        """Run a collective to its end. `wait` raises failures."""
        handle = self._next(collective, None)
        while handle is not None:
            handle = self._next(collective, handle)

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
        next_handle = self._next(collective, handle)
        if next_handle is not None:
            self._pending.append((collective, next_handle))

    def _next(self, collective: Collective, handle: int | None) -> int | None:
        """Wait for an operation of a collective, and start the next one, if any.

        After a failure none is started.
        """
        try:
            with catch_failures():
                result = None if handle is None else hvd.synchronize(handle)
                return collective.send(result) if self._failure is None else None
        except CollectiveFailed as error:
            self._failure = self._failure or error
        except StopIteration:
            pass
        return None


def sum_in_place(values: torch.Tensor, name: str) -> Collective:
    """Replace a rank's values by the ring's sums, with the same bits on all ranks.

    Args:
        values: float32, float64 or int64, contiguous, with the same shape on all ranks.
        name: Pairs the calls of the ranks.
    """
    return _in_place(hvd.allreduce_async_, values, op=hvd.Sum, name=name)


def sendable(values: torch.Tensor) -> torch.Tensor:
    """The values where Horovod can send them: on the CPU if it was built without CUDA.

    That waits until they are computed.
    """
    if values.device.type == "cpu" or _TAKES_GPU_TENSORS:
        return values
    # Copies to memory that stays in place take a fraction of the time; PyTorch keeps it for later.
    on_cpu = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return on_cpu.copy_(values)


def sum_compressed(values: torch.Tensor, name: str, compression: Compression) -> Collective:
    """Replace a rank's values by the ring's sums, sent with 16 bits for each number.

    Each rank receives one part of the values from all ranks, sums it in float32, and sends the sum
    to all ranks. That is the same number of bytes as in a ring allreduce of 16-bit numbers (its
    reduce-scatter and allgather), but each number is rounded only twice, for any number of ranks.

    Args:
        values: float32, one axis, of the same length on all ranks.
        name: Pairs the calls of the ranks.
        compression: Any choice but `none`. With `fp16`, values are divided by the number of ranks,
            so that their sums fit in float16.
    """
    num_ranks = hvd.size()
    base, remainder = divmod(len(values), num_ranks)
    lengths = [base + (rank < remainder) for rank in range(num_ranks)]
    splits = torch.tensor(lengths, dtype=torch.int32)
    compressed = sendable(_compress(values, compression, num_ranks))
    parts, _ = yield hvd.alltoall_async(compressed, splits, name=f"{name}.parts")
    total = _decompress(parts, compression).reshape(num_ranks, len(parts) // num_ranks).sum(0)
    gathered = yield hvd.allgather_async(_compress(total, compression), name=f"{name}.whole")
    values.copy_(_decompress(gathered, compression, num_ranks))


def _tensor_of(rows: Rows) -> torch.Tensor:
    value = rows.variable
    tensor = value.tensor if isinstance(value, TorchVariable) else from_numpy(value.numpy())
    return tensor if rows.last is None else tensor[rows.first : rows.last]


def _broadcast(values: torch.Tensor, root: int, name: str) -> Collective:
    """Replace a rank's values by those of the rank `root`."""
    return _in_place(hvd.broadcast_async_, values, root, name=name)


def _in_place(
    begin: Callable[..., int], values: torch.Tensor, *args: Any, **kwargs: Any
) -> Collective:
    """Run an operation that replaces values, wherever Horovod can do that."""
    sent = sendable(values)
    yield begin(sent, *args, **kwargs)
    if sent is not values:
        values.copy_(sent)


def _run(begin: Callable[..., int], *args: Any, **kwargs: Any) -> Any:
    """Start an operation, wait for it, and return its result."""
    with catch_failures():
        return hvd.synchronize(begin(*args, **kwargs))


def _compress(values: torch.Tensor, compression: Compression, scale: int = 1) -> torch.Tensor:
    """Round float32 numbers to 16 bits.

    Args:
        values: The numbers, which are not changed.
        compression: Any choice but `none`.
        scale: Divisor of the numbers for `fp16`, whose largest number is 65,504; larger ones are
            clamped to it.

    Returns:
        The bits of the 16-bit numbers as int16, of the same shape.
    """
    dtype = _COMPRESSED_DTYPES[compression]
    if dtype == torch.float16:
        values = values / scale
        largest = torch.finfo(dtype).max
        # Infinite numbers and NaN must stay: loss scaling checks for them.
        values = torch.where(values.isfinite(), values.clamp(-largest, largest), values)
    return values.to(dtype).view(_TRANSFER_DTYPE)


def _decompress(values: torch.Tensor, compression: Compression, scale: int = 1) -> torch.Tensor:
    """Return the rounded float32 numbers for the result of `_compress`."""
    dtype = _COMPRESSED_DTYPES[compression]
    numbers = values.view(dtype).to(torch.float32)
    return numbers.mul_(scale) if dtype == torch.float16 else numbers
