"""Adds a step's gradients over the ring while the backward pass makes others (DESIGN D17).

A bucket is one array. The gradients of its parameters are copied into it as they come, it goes out
when it has all of them, and the sums come back into it: they are the parameters' gradients then.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.buckets import NAME, Bucket, Reduction, in_buckets
from edl_horovod.frameworks.torch import travels
from edl_horovod.frameworks.torch.rows import RowSum
from edl_horovod.frameworks.torch.variables import from_numpy

__all__ = ["Reducer"]

_TRAVELS_AS = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""Types of parameters, and in which their gradients are added."""


@dataclass
class _Freight:
    """A bucket in the step that is under way."""

    bucket: Bucket
    array: torch.Tensor
    """All its gradients, one after the other."""
    parts: dict[int, torch.Tensor]
    """The part of the array for each place, in the parameter's shape."""
    missing: set[int] = field(default_factory=set)
    """Places whose gradient has not come yet."""
    is_sent: bool = False


class Reducer:
    """Sums the gradients of some parameters over the ring, and a step's numbers with them.

    All ranks send the same buckets in each step, whatever they have: zeros where a parameter has no
    gradient, as in a branch that was not taken, or on a rank without examples.

    A step sets its parameters' gradients to None, computes, calls `begin` just before its last
    backward pass, and `finish` after it. Between the two, gradients must not be changed.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        options: Reduction,
        *,
        sparse: Collection[str] = (),
    ) -> None:
        """Deal the parameters out to buckets; no memory is taken before the first step.

        Args:
            parameters: By name, in the same order on all ranks, best that of their first use.
            options: In which buckets the gradients travel, and as what.
            sparse: Names of those whose gradients are rows, as of `nn.Embedding(sparse=True)`. The
                rows of all ranks are exchanged where these are fewer bytes than the whole.

        Raises:
            UserCodeError: A parameter is of a type whose gradients the ring cannot add.
        """
        # Those of no numbers are left out: there is nothing to add.
        kept = {name: each for name, each in parameters.items() if each.numel()}
        self._names, self._parameters = list(kept), list(kept.values())
        self._options = options
        for name, parameter in kept.items():
            if parameter.dtype not in _TRAVELS_AS:
                known = ", ".join(str(each) for each in _TRAVELS_AS)
                raise UserCodeError(
                    f"The gradient of the parameter {name} cannot be added over a ring.",
                    received=f"dtype={parameter.dtype}",
                    cure=f"The ring adds {known}; make it one of these, or two real parameters.",
                )
        self._by_rows = [place for place, name in enumerate(self._names) if name in sparse]
        self._freights: list[_Freight] = []
        self._freight_of: dict[int, _Freight] = {}
        self._travels = travels.Travels()
        self._is_armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._take, place))
            for place, parameter in enumerate(self._parameters)
            if parameter.requires_grad and place not in self._by_rows
        ]

    def begin(self) -> None:
        """Have the gradients of a backward pass that follows go out as they come."""
        if not self._freights:
            self._load()
        for freight in self._freights:
            freight.missing, freight.is_sent = set(freight.bucket.places), False
        self._is_armed = True

    def finish(self, small: NDArray[np.float64]) -> NDArray[np.float64]:
        """Send what is left and wait for all; then every gradient is the sum over the ranks.

        A parameter that has a gradient on no rank has none afterwards.

        Args:
            small: Numbers of the step (counts, losses, flags), as many on all ranks.

        Returns:
            The ranks' sums of `small`.

        Raises:
            CollectiveFailed: A member was lost; the gradients mean nothing any more.
        """
        self._is_armed = False
        has_gradient = [parameter.grad is not None for parameter in self._parameters]
        for freight in self._freights:
            if not freight.is_sent:
                self._fill(freight)
                self._send(freight)
        rows = [RowSum(self._names[i], self._parameters[i]) for i in self._by_rows]
        counts = [each.num_rows for each in rows]
        numbers = from_numpy(np.concatenate([small, has_gradient, counts]))
        self._travels.begin(travels.sum_in_place(numbers, f"{NAME}.numbers"))
        self._travels.end()
        ends = [len(small), len(small) + len(has_gradient)]
        small_sums, with_gradient, all_counts = np.split(numbers.numpy(), ends)
        for each, count in zip(rows, all_counts, strict=True):
            self._travels.begin(each.travel(round(count)))
        self._travels.end()
        totals = {i: each.total() for i, each in zip(self._by_rows, rows, strict=True)}
        self._give(totals, with_gradient > 0)
        return small_sums

    def add(self, values: torch.Tensor, name: str) -> None:
        """Replace numbers by the ring's sums, amid a forward or a backward pass.

        Where a member is lost they stay as they are, and `finish` says so: what calls this is the
        user's code, and its errors are the user's.

        Args:
            values: float32, float64 or int64, in C order; of the same shape on all ranks.
            name: Pairs the calls of the ranks.
        """
        self._travels.complete(travels.sum_in_place(values, name))

    def abandon(self) -> None:
        """Forget a step that failed, also amid its backward pass; the next one can begin.

        What is still on its way keeps the arrays that it is in, and the next step has others.
        """
        self._is_armed = False
        self._freights.clear()
        self._freight_of.clear()
        self._travels = travels.Travels()
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _load(self) -> None:
        """Make the buckets' arrays."""
        parameters = self._parameters
        dense = [place for place in range(len(parameters)) if place not in self._by_rows]
        for is_short in (True, False):
            places = [i for i in dense if self._is_compressed(i) == is_short]
            kinds = [(self._wire(i), parameters[i].device.type) for i in places]
            sizes = [
                parameters[i].numel() * kind.itemsize
                for i, (kind, _) in zip(places, kinds, strict=True)
            ]
            name = f"{NAME}.{self._options.compression}" if is_short else NAME
            for bucket in in_buckets(sizes, kinds, self._options.bucket_bytes, name):
                own = tuple(places[number] for number in bucket.places)
                self._freights.append(self._loaded(Bucket(bucket.name, own)))
        self._freight_of = {i: freight for freight in self._freights for i in freight.bucket.places}

    def _loaded(self, bucket: Bucket) -> _Freight:
        members = [self._parameters[place] for place in bucket.places]
        array = torch.empty(
            sum(each.numel() for each in members),
            dtype=self._wire(bucket.places[0]),
            device=members[0].device,
        )
        parts = array.split([each.numel() for each in members])
        shaped = {
            place: part.view(each.shape)
            for place, part, each in zip(bucket.places, parts, members, strict=True)
        }
        return _Freight(bucket, array, shaped)

    def _wire(self, place: int) -> torch.dtype:
        return _TRAVELS_AS[self._parameters[place].dtype]

    def _is_compressed(self, place: int) -> bool:
        return self._options.compression != "none" and self._wire(place) == torch.float32

    def _take(self, place: int, parameter: torch.nn.Parameter) -> None:
        """Note that a parameter's gradient is there; autograd calls it amid a backward pass."""
        if not self._is_armed:
            return
        freight = self._freight_of[place]
        if freight.is_sent:
            raise UserCodeError(
                f"The parameter {self._names[place]} was given a gradient twice in one backward"
                " pass, and the first is on its way over the ring.",
                cure="Checkpoint with torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
            )
        self._copy(freight, place)
        freight.missing.discard(place)
        if not freight.missing:
            self._send(freight)

    def _fill(self, freight: _Freight) -> None:
        """Give a bucket what no hook brought: gradients of earlier passes, and zeros."""
        for place in freight.missing:
            if self._parameters[place].grad is None:
                freight.parts[place].zero_()
            else:
                self._copy(freight, place)

    def _copy(self, freight: _Freight, place: int) -> None:
        parameter, part = self._parameters[place], freight.parts[place]
        gradient = parameter.grad.detach()
        if gradient.data_ptr() == part.data_ptr():
            return  # A second use of the parameter has added to what is in the bucket.
        part.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        if parameter.dtype == part.dtype:
            # Its own memory is free for the next ones.
            parameter.grad = part

    def _send(self, freight: _Freight) -> None:
        freight.is_sent = True
        name, array = freight.bucket.name, freight.array
        if self._is_compressed(freight.bucket.places[0]):
            how = self._options
            self._travels.begin(
                travels.sum_compressed(array, name, how.compression, how.batch_size)
            )
        else:
            self._travels.begin(travels.sum_in_place(array, name))
        self._travels.go_on()

    def _give(self, rows: Mapping[int, torch.Tensor], has_gradient: NDArray[np.bool_]) -> None:
        """Give the parameters their sums, those that have one on any rank."""
        for freight in self._freights:
            for place, part in freight.parts.items():
                self._parameters[place].grad = part.to(self._parameters[place].dtype)
        for place, total in rows.items():
            self._parameters[place].grad = total
        for parameter, is_there in zip(self._parameters, has_gradient, strict=True):
            if not is_there:
                parameter.grad = None
