"""Horovod's collectives on PyTorch's tensors.

Of Horovod's PyTorch package only the operations on single tensors are used: its optimizer and its
states leave the sums of a failed step in the gradients, and its grouped operations report the last
tensor's end alone.
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
    """Wait for operations that were begun, for all of them also where one fails.

    Returns:
        What each gives.

    Raises:
        CollectiveFailed: One of them failed; none writes to its tensor any more.
    """
    found, failure = [], None
    for handle in handles:
        try:
            with catch_failures():
                found.append(hvd.synchronize(handle))
        except CollectiveFailed as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return found


class TorchCollectives:
    """See `frameworks.base.Collectives`; tensors may be on any device."""

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Add the ranks' arrays, which have the same shape and type."""
        total = from_numpy(values.copy())
        _run(hvd.allreduce_async_, total, op=hvd.Sum, name=name)
        return to_numpy(total)

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers of each rank; shape (size, len(row)), in rank order."""
        mine = torch.tensor([list(row)], dtype=torch.int64)
        rows: NDArray[np.int64] = to_numpy(_run(hvd.allgather_async, mine, name=name))
        return rows

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Give every rank the root's values: large ones in place, small ones packed together.

        A collective of its own costs a small variable much more than its bytes.
        """
        large = [variable for variable in variables if _is_large(variable)]
        small = [variable for variable in variables if not _is_large(variable)]
        # All are begun before the first is waited for, so the network is never idle. By place: the
        # variables' own names may depend on what a process has built before.
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
        """Give every rank these rows of the root's variables, in one collective."""
        own = [_bytes_of_rows(each) for each in rows]
        packed = torch.cat([*own, bytes_of(torch.tensor([number]))])
        _run(hvd.broadcast_async_, packed, root, name=name)
        if hvd.rank() == root:
            return number
        *parts, last = packed.split([*(len(each) for each in own), 8])
        for each, mine, part in zip(rows, own, parts, strict=True):
            if not torch.equal(mine, part):
                _write(each, part)
        return int(last.clone().view(torch.int64))

    def blank_like(self, variables: Sequence[Variable]) -> list[Variable]:
        """New variables of the same shapes and types."""
        return [
            TorchVariable(each.name, torch.empty_like(each.tensor))
            if isinstance(each, TorchVariable)
            else Array(np.zeros_like(each.numpy()))
            for each in variables
        ]

    def checksum(self, variable: Variable) -> int:
        """A number that is the same where a variable has the same bits."""
        return checksum(_bytes(variable).numpy())


def _run(begin: Callable[..., int], *args: Any, **kwargs: Any) -> Any:
    """Begin an operation and wait for its end."""
    with catch_failures():
        return hvd.synchronize(begin(*args, **kwargs))


def _is_large(variable: Variable) -> bool:
    """Whether a variable is copied in place: its memory must be the bytes that are sent."""
    return (
        isinstance(variable, TorchVariable)
        and variable.tensor.is_contiguous()
        and sizes([variable])[0] >= LARGE_BYTES
    )


def _bytes(variable: Variable) -> torch.Tensor:
    """The bytes of a value on the host, mostly without a copy."""
    return _bytes_of_rows(Rows(variable))


def _bytes_of_rows(rows: Rows) -> torch.Tensor:
    """The bytes of some rows on the host."""
    variable = rows.variable
    value = variable.tensor if isinstance(variable, TorchVariable) else from_numpy(variable.numpy())
    return bytes_of(value if rows.last is None else value[rows.first : rows.last]).cpu()


def _write(rows: Rows, flat: torch.Tensor) -> None:
    """Give some rows the value that has these bytes."""
    variable = rows.variable
    if isinstance(variable, TorchVariable):
        place = variable.tensor if rows.last is None else variable.tensor[rows.first : rows.last]
        # A copy is where numbers of any size may begin.
        place.copy_(flat.clone().view(place.dtype).reshape(place.shape))
        return
    changed = variable.numpy().copy()
    place = changed if rows.last is None else changed[rows.first : rows.last]
    place.reshape(-1).view(np.uint8)[:] = flat.numpy()
    variable.assign(changed)
