"""Adds a step's gradients over the ring while the backward pass makes others (DESIGN D17).

A bucket is one array. The gradients of its parameters are copied into it as they come, it goes out
when it has all of them, and the sums come back into it: they are the parameters' gradients then.
The last bucket, which has the first parameters, would be full as the backward pass ends: it is
filled after that, and the step's numbers go with it. So a small model has one message in a step.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import horovod.torch as hvd
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
    num_gradients: int
    """Numbers of the array that are gradients; others may follow."""
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
        buckets = self._buckets()
        carriers = [bucket for bucket in buckets if self._may_carry_numbers(bucket)]
        self._last_bucket = carriers[-1] if carriers else Bucket(f"{NAME}.numbers", ())
        self._early_buckets = [each for each in buckets if each != self._last_bucket]
        self._last: _Freight | None = None
        self._freights: list[_Freight] = []
        self._freight_of: dict[int, _Freight] = {}
        self._travels = travels.Travels()
        self._is_armed = False
        self._weight = self._usual_weight = 0.0
        self._hooks = [
            self._parameters[place].register_post_accumulate_grad_hook(partial(self._take, place))
            for bucket in self._early_buckets
            for place in bucket.places
            if self._parameters[place].requires_grad
        ]

    def begin(self, weight: float) -> None:
        """Have the gradients of a backward pass that follows go out as they come.

        Args:
            weight: What makes sums of this rank's gradients; 0 where it has none.
        """
        if not self._freights:
            self._freights = [self._loaded(bucket) for bucket in self._early_buckets]
            self._freight_of = {i: each for each in self._freights for i in each.bucket.places}
        self._weight, self._usual_weight = weight, self._options.batch_size / hvd.size()
        for freight in self._freights:
            freight.missing, freight.is_sent = set(freight.bucket.places), False
        self._is_armed = True

    def finish(self, small: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """Send what is left and wait for all; then every gradient is the mean over the ranks.

        Each rank counts by its weight, and one without a gradient as zero. A parameter that has a
        gradient on no rank has none afterwards.

        Args:
            small: Numbers of the step (counts, losses, flags), as many on all ranks.
            weight: What this rank counts in the mean.

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
        rows = [RowSum(self._names[i], self._parameters[i], self._share) for i in self._by_rows]
        counts = [each.num_rows for each in rows]
        numbers = np.concatenate([[weight], small, has_gradient, counts])
        last = self._filled_last(numbers)
        self._travels.begin(travels.sum_in_place(last.array, last.bucket.name))
        self._travels.end()
        ends = np.cumsum([1, len(small), len(has_gradient)])
        sums = last.array[last.num_gradients :].double().numpy()
        weights, small_sums, with_gradient, all_counts = np.split(sums, ends)
        for each, count in zip(rows, all_counts, strict=True):
            self._travels.begin(each.travel(round(count)))
        self._travels.end()
        totals = {i: each.total() for i, each in zip(self._by_rows, rows, strict=True)}
        if weights[0]:
            factor = self._usual_weight / float(weights[0])
            gradients = [each.array[: each.num_gradients] for each in (*self._freights, last)]
            for summed in (*gradients, *totals.values()):
                summed.mul_(factor)
        self._give((*self._freights, last), totals, with_gradient > 0)
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
        self._last = None
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

    def _buckets(self) -> list[Bucket]:
        buckets = []
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
                buckets.append(Bucket(bucket.name, own))
        return buckets

    def _may_carry_numbers(self, bucket: Bucket) -> bool:
        """Whether numbers of the host can be added in a bucket, to the precision of a loss."""
        first = bucket.places[0]
        return not self._is_compressed(first) and self._parameters[first].device.type == "cpu"

    def _loaded(self, bucket: Bucket, num_numbers: int = 0) -> _Freight:
        """A bucket's array, with room for numbers behind the gradients."""
        members = [self._parameters[place] for place in bucket.places]
        sizes = [each.numel() for each in members]
        array = torch.empty(
            sum(sizes) + num_numbers,
            dtype=self._wire(bucket.places[0]) if members else torch.float64,
            device=members[0].device if members else None,
        )
        *parts, _ = array.split([*sizes, num_numbers])
        shaped = {
            place: part.view(each.shape)
            for place, part, each in zip(bucket.places, parts, members, strict=True)
        }
        return _Freight(bucket, array, shaped, sum(sizes))

    def _filled_last(self, numbers: NDArray[np.float64]) -> _Freight:
        """The last bucket with its gradients, weighed, and with the step's numbers."""
        last = self._last
        if last is None:
            last = self._last = self._loaded(self._last_bucket, len(numbers))
        last.missing = set(last.bucket.places)
        self._fill(last)
        if self._share != 1.0:
            last.array[: last.num_gradients].mul_(self._share)
        last.array[last.num_gradients :].copy_(from_numpy(numbers))
        return last

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

    @property
    def _share(self) -> float:
        """What this rank's gradients are multiplied by; 1 where all have as many examples.

        Only when a bucket goes out: until then a gradient may be added to, and hooks look at it.
        """
        return self._weight / self._usual_weight

    def _send(self, freight: _Freight) -> None:
        freight.is_sent = True
        name, array = freight.bucket.name, freight.array
        if self._share != 1.0:
            array.mul_(self._share)
        if self._is_compressed(freight.bucket.places[0]):
            self._travels.begin(travels.sum_compressed(array, name, self._options.compression))
        else:
            self._travels.begin(travels.sum_in_place(array, name))
        self._travels.go_on()

    def _give(
        self,
        freights: Iterable[_Freight],
        rows: Mapping[int, torch.Tensor],
        has_gradient: NDArray[np.bool_],
    ) -> None:
        """Give the parameters their means, those that have one on any rank."""
        for freight in freights:
            for place, part in freight.parts.items():
                self._parameters[place].grad = part.to(self._parameters[place].dtype)
        for place, total in rows.items():
            self._parameters[place].grad = total
        for parameter, is_there in zip(self._parameters, has_gradient, strict=True):
            if not is_there:
                parameter.grad = None
