"""Horovod's collectives on PyTorch tensors.

This module uses only Horovod's operations on single tensors. Horovod's optimizer and state classes
leave the sums of a failed step in the gradients, and its grouped operations report only the
completion of the last tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from numpy.typing import NDArray

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.packs import LARGE_BYTES, packs, sizes
from edl_horovod.frameworks.torch.variables import TorchVariable, bytes_of, from_numpy, to_numpy
from edl_horovod.frameworks.values import Array, Rows, Variable, checksum

__all__ = ["HOROVOD", "TorchCollectives", "catch_failures", "wait_for_all"]

HOROVOD = Horovod(hvd)
catch_failures = HOROVOD.catch_failures


def wait_for_all(handles: Sequence[int]) -> list[Any]:
    """Wait for all of these operations, even if one of them fails.

    Returns:
        The result of each operation.

    Raises:
        CollectiveFailed: One of them failed; none of them writes to its tensor any more.
    """
    results, failure = [], None
    for handle in handles:
        try:
            with catch_failures():
                results.append(hvd.synchronize(handle))
        except CollectiveFailed as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


class TorchCollectives:
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

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Broadcast the root's values: large variables in place, small ones in packs.

        For a small variable, the fixed cost of a collective is much larger than that of its bytes.
        """
        large = [variable for variable in variables if _is_large(variable)]
        small = [variable for variable in variables if not _is_large(variable)]
        # All start before the first wait, so that the network is never idle. The index is part of
        # the name, as the variables' own names may differ between processes.
        views = [bytes_of(variable.tensor) for variable in large]  # type: ignore[attr-defined]
        handles: list[int] = []
        try:
            with catch_failures():
                for number, view in enumerate(views):
                    handles.append(hvd.broadcast_async_(view, root, name=f"{name}.{number}"))
        finally:
            wait_for_all(handles)
        for number, pack in enumerate(packs(small)):
            packed = torch.cat([_bytes(variable) for variable in pack])
            _run(hvd.broadcast_async_, packed, root, name=f"{name}.pack.{number}")
            if hvd.rank() != root:
                parts = packed.split(sizes(pack))
                for variable, part in zip(pack, parts, strict=True):
                    _write(Rows(variable), part)

    def broadcast_rows(self, rows: Sequence[Rows], number: int, root: int, name: str) -> int:
        """Broadcast these rows of the root's variables, in one collective."""
        local_bytes = [_bytes_of_rows(part) for part in rows]
        packed = torch.cat([*local_bytes, bytes_of(torch.tensor([number]))])
        _run(hvd.broadcast_async_, packed, root, name=name)
        if hvd.rank() == root:
            return number
        *root_bytes, root_number = packed.split([*map(len, local_bytes), 8])
        for part, local, received in zip(rows, local_bytes, root_bytes, strict=True):
            if not torch.equal(local, received):
                _write(part, received)
        return int(root_number.clone().view(torch.int64))

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
        return checksum(_bytes(variable).numpy())


def _run(begin: Callable[..., int], *args: Any, **kwargs: Any) -> Any:
    """Start an operation, wait for it, and return its result."""
    with catch_failures():
        return hvd.synchronize(begin(*args, **kwargs))


def _is_large(variable: Variable) -> bool:
    """Whether a variable is broadcast in place; this requires contiguous memory."""
    return (
        isinstance(variable, TorchVariable)
        and variable.tensor.is_contiguous()
        and sizes([variable])[0] >= LARGE_BYTES
    )


def _bytes(variable: Variable) -> torch.Tensor:
    """The bytes of a variable's value on the host, mostly without a copy."""
    return _bytes_of_rows(Rows(variable))


def _bytes_of_rows(rows: Rows) -> torch.Tensor:
    """The bytes of a range of rows on the host."""
    variable = rows.variable
    value = variable.tensor if isinstance(variable, TorchVariable) else from_numpy(variable.numpy())
    return bytes_of(value if rows.last is None else value[rows.first : rows.last]).cpu()


def _write(rows: Rows, flat: torch.Tensor) -> None:
    """Set a range of rows to the value with these bytes."""
    variable = rows.variable
    if isinstance(variable, TorchVariable):
        target = variable.tensor if rows.last is None else variable.tensor[rows.first : rows.last]
        # The copy aligns the bytes, which `view` requires.
        target.copy_(flat.clone().view(target.dtype).reshape(target.shape))
        return
    changed = variable.numpy().copy()
    target = changed if rows.last is None else changed[rows.first : rows.last]
    target.reshape(-1).view(np.uint8)[:] = flat.numpy()
    variable.assign(changed)
