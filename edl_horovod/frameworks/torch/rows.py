"""Sums sparse gradients over the ring: rows of an array, as for embeddings."""

import horovod.torch as hvd
import torch

from edl_horovod.frameworks.buckets import NAME
from edl_horovod.frameworks.torch.collectives import Collective

__all__ = ["RowSum"]


class RowSum:
    """The sum of one parameter's rows over the ring.

    The total number of rows over the ring must be known before `collective` starts.
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, factor: float) -> None:
        """Prepare this rank's rows.

        Args:
            name: The parameter's name.
            parameter: Its gradient is None, sparse along the first axis, or dense if it is used
                not only by an embedding.
            factor: The gradient is multiplied by it.
        """
        self._name = f"{NAME}.rows.{name}"
        self._shape, self._dtype = parameter.shape, parameter.dtype
        self._width = parameter[:1].numel()
        gradient = parameter.grad
        if gradient is None:
            indices = torch.empty(0, dtype=torch.int64, device=parameter.device)
            values = torch.empty(0, self._width, device=parameter.device)
        elif gradient.is_sparse:
            summed = gradient.detach().coalesce()
            indices, values = summed.indices()[0], summed.values()
        else:
            indices = torch.arange(len(parameter), device=parameter.device)
            values = gradient.detach()
        # Horovod does not support all types of parameters.
        wire_dtype = torch.float64 if self._dtype == torch.float64 else torch.float32
        self._indices = indices.contiguous()
        self._values = (
            values.reshape(len(indices), self._width).to(wire_dtype).contiguous() * factor
        )

    @property
    def num_rows(self) -> int:
        """The number of this rank's rows."""
        return len(self._indices)

    def collective(self, count: int) -> Collective:
        """Exchange the rows, or reduce whole arrays if these are fewer bytes.

        Args:
            count: The total number of rows of all ranks.
        """
        value_bytes = self._width * self._values.element_size()
        sparse_bytes = count * (value_bytes + self._indices.element_size())
        # An extra column marks the rows that exist; optimizers do not update the others.
        dense_bytes = self._shape[0] * (value_bytes + self._values.element_size())
        if sparse_bytes < dense_bytes:
            indices = yield hvd.allgather_async(self._indices, name=f"{self._name}.indices")
            values = yield hvd.allgather_async(self._values, name=f"{self._name}.values")
            self._indices, inverse = torch.unique(indices, return_inverse=True)
            self._values = values.new_zeros(len(self._indices), self._width)
            # The rows are added in the order of the ranks, so that all ranks get the same bits.
            self._values.index_add_(0, inverse, values)
            return
        table = self._values.new_zeros(self._shape[0], self._width + 1)
        table[self._indices, :-1] = self._values
        table[self._indices, -1] = 1
        yield hvd.allreduce_async_(table, op=hvd.Sum, name=self._name)
        self._indices = table[:, -1].nonzero()[:, 0]
        self._values = table[self._indices, :-1]

    def total(self) -> torch.Tensor:
        """Return the sum as a coalesced sparse tensor of the parameter's type."""
        values = self._values.reshape(-1, *self._shape[1:]).to(self._dtype)
        return torch.sparse_coo_tensor(
            self._indices[None], values, self._shape, is_coalesced=True, check_invariants=False
        )
