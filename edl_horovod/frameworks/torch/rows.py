"""Sums over the ring of gradients that are some rows of an array, as embeddings have them."""

import horovod.torch as hvd
import torch

from edl_horovod.frameworks.buckets import NAME
from edl_horovod.frameworks.torch.travels import Travel

__all__ = ["RowSum"]


class RowSum:
    """The sum of one parameter's rows over the ring.

    All ranks know how many rows there are over the ring before one of them sends any.
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, share: float) -> None:
        """Take what a rank has.

        Args:
            name: Of the parameter.
            parameter: Its gradient is None, sparse along the first size, or dense where something
                else than an embedding uses it, too.
            share: What it is multiplied by.
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
        # Horovod does not know all types of parameters.
        wire = torch.float64 if self._dtype == torch.float64 else torch.float32
        self._indices = indices.contiguous()
        self._values = values.reshape(len(indices), self._width).to(wire).contiguous() * share

    @property
    def num_rows(self) -> int:
        """How many rows this rank has."""
        return len(self._indices)

    def travel(self, count: int) -> Travel:
        """Exchange the rows, or add whole arrays where that is less.

        Args:
            count: Rows of all ranks together.
        """
        value_bytes = self._width * self._values.element_size()
        as_rows = count * (value_bytes + self._indices.element_size())
        # A column says which rows there are: of the others an optimizer changes nothing.
        whole = self._shape[0] * (value_bytes + self._values.element_size())
        if as_rows < whole:
            indices = yield hvd.allgather_async(self._indices, name=f"{self._name}.indices")
            values = yield hvd.allgather_async(self._values, name=f"{self._name}.values")
            self._indices, places = torch.unique(indices, return_inverse=True)
            self._values = values.new_zeros(len(self._indices), self._width)
            # In the order of the ranks, so that all have the same bits.
            self._values.index_add_(0, places, values)
            return
        table = self._values.new_zeros(self._shape[0], self._width + 1)
        table[self._indices, :-1] = self._values
        table[self._indices, -1] = 1
        yield hvd.allreduce_async_(table, op=hvd.Sum, name=self._name)
        self._indices = table[:, -1].nonzero()[:, 0]
        self._values = table[self._indices, :-1]

    def total(self) -> torch.Tensor:
        """The sum, as a sparse tensor of the parameter's type in which no row is twice."""
        values = self._values.reshape(-1, *self._shape[1:]).to(self._dtype)
        return torch.sparse_coo_tensor(
            self._indices[None], values, self._shape, is_coalesced=True, check_invariants=False
        )
