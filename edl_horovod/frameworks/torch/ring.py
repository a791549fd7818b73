"""PyTorch on a ring of Horovod workers: the reduction of gradients (DESIGN D17), and the framework.

Gradients are reduced while the backward pass computes others. A bucket is one array. The gradients
of its parameters are copied into it as they are computed. When all of them are there, the bucket is
reduced in place, and its parts become the parameters' gradients. The last bucket, with the first
parameters, would be complete only at the end of the backward pass: it is filled afterwards and also
carries the step's numbers. So a small model needs one collective in a step.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import horovod.torch as hvd
import numpy as np
import torch
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import Framework
from edl_horovod.frameworks.packing import NAME, Bucket, in_buckets
from edl_horovod.frameworks.step_options import Reduction
from edl_horovod.frameworks.torch.collectives import (
    HOROVOD,
    Collective,
    PendingCollectives,
    TorchCollectives,
    sendable,
    sum_compressed,
    sum_in_place,
)
from edl_horovod.frameworks.torch.framework import TorchFramework
from edl_horovod.frameworks.torch.variables import from_numpy

_WIRE_DTYPES = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32)
_WIRE_DTYPES[torch.float64] = torch.float64
"""Types of parameters, and the types in which their gradients are summed."""


@dataclass
class _BucketBuffer:
    """The buffer of a bucket, and its state in the current step."""

    bucket: Bucket
    array: torch.Tensor
    """All gradients of the bucket, concatenated."""
    parts: dict[int, torch.Tensor]
    """For the index of each parameter, its part of the array, in the parameter's shape."""
    num_gradients: int
    """The number of the array's elements that are gradients; the step's numbers may follow."""
    missing: set[int] = field(default_factory=set)
    """Indices of parameters whose gradient is not in the buffer yet."""
    is_sent: bool = False


class Reducer:
    """Sums the gradients of some parameters over the ring, together with a step's numbers.

    All ranks reduce the same buckets in each step. They send zeros if a parameter has no gradient,
    as in a branch that was not taken, or if they have no examples.

    A step sets its parameters' gradients to None, computes, calls `begin` just before its last
    backward pass, and `finish` after it. Between the two, gradients must not be changed.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        options: Reduction,
        sparse: Collection[str] = (),
    ) -> None:
        """Assign the parameters to buckets; memory is allocated in the first step.

        Args:
            parameters: By name, in the same order on all ranks; best in the order of first use.
            options: The size of buckets, and the compression.
            sparse: Names of parameters with sparse gradients, as of `nn.Embedding(sparse=True)`.
                The rows of all ranks are exchanged if these are fewer bytes than the whole array.

        Raises:
            UserCodeError: A parameter has a type whose gradients cannot be summed.
        """
        # Empty parameters are left out: there is nothing to sum.
        reduced = {name: parameter for name, parameter in parameters.items() if parameter.numel()}
        self._names, self._parameters = list(reduced), list(reduced.values())
        self._options = options
        for name, parameter in reduced.items():
            if parameter.dtype not in _WIRE_DTYPES:
                supported = ", ".join(str(dtype) for dtype in _WIRE_DTYPES)
                raise UserCodeError(
                    f"The gradient of the parameter {name} cannot be summed over a ring.",
                    received=f"dtype={parameter.dtype}",
                    hint=f"Use one of {supported}; replace a complex parameter by two real ones.",
                )
        self._sparse_indices = [index for index, name in enumerate(self._names) if name in sparse]
        buckets = self._make_buckets()
        carriers = [bucket for bucket in buckets if self._may_carry_numbers(bucket)]
        self._last_bucket = carriers[-1] if carriers else Bucket(f"{options.name}.numbers", ())
        self._early_buckets = [bucket for bucket in buckets if bucket != self._last_bucket]
        self._last_buffer: _BucketBuffer | None = None
        self._early_buffers: list[_BucketBuffer] = []
        self._buffer_of: dict[int, _BucketBuffer] = {}
        self._pending = PendingCollectives()
        self._is_active = False
        self._weight = self._usual_weight = 0.0
        self._spans: list[tuple[str, float, float]] = []
        for bucket in self._early_buckets:
            for index in bucket.places:
                parameter = self._parameters[index]
                if parameter.requires_grad:
                    hook = partial(self._on_gradient, index)
                    parameter.register_post_accumulate_grad_hook(hook)

    def begin(self, weight: float) -> None:
        """Start to reduce the gradients of the following backward pass as they are computed.

        Args:
            weight: Factor that turns this rank's mean gradients into sums; 0 if it has no
                examples.
        """
        if not self._early_buffers:
            self._early_buffers = [self._allocate(bucket) for bucket in self._early_buckets]
            self._buffer_of = {i: buffer for buffer in self._early_buffers for i in buffer.parts}
        self._weight, self._usual_weight = weight, self._options.batch_size / hvd.size()
        for buffer in self._early_buffers:
            buffer.missing, buffer.is_sent = set(buffer.bucket.places), False
        self._is_active = True
        self._spans.clear()

    def finish(self, small: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """Reduce the rest and wait for all; then every gradient is the mean over the ranks.

        Ranks count by their weights; a rank without a gradient counts as zero. A parameter without
        a gradient on any rank has none afterwards.

        Args:
            small: Numbers of the step (counts, losses, flags), of the same length on all ranks.
            weight: Weight of this rank in the mean.

        Returns:
            The ring's sums of `small`.

        Raises:
            CollectiveFailed: A member was lost; the gradients are undefined.
        """
        self._is_active = False
        has_gradient = [parameter.grad is not None for parameter in self._parameters]
        for buffer in self._early_buffers:
            if not buffer.is_sent:
                self._fill(buffer)
                self._send(buffer)
        sparse = [(self._names[i], self._parameters[i]) for i in self._sparse_indices]
        row_sums = [_RowSum(name, parameter, self._factor) for name, parameter in sparse]
        counts = [row_sum.num_rows for row_sum in row_sums]
        numbers = np.concatenate([[weight], small, has_gradient, counts])
        last = self._fill_last(numbers)
        self._start(last.bucket.name, sum_in_place(last.array, last.bucket.name))
        self._pending.wait()
        ends = np.cumsum([1, len(small), len(has_gradient)])
        sums = last.array[last.num_gradients :].double().numpy()
        weights, small_sums, with_gradient, all_counts = np.split(sums, ends)
        for row_sum, count in zip(row_sums, all_counts, strict=True):
            self._start(row_sum.name, row_sum.collective(round(count)))
        self._pending.wait()
        totals = {i: rows.total() for i, rows in zip(self._sparse_indices, row_sums, strict=True)}
        buffers = (*self._early_buffers, last)
        if weights[0]:
            factor = self._usual_weight / float(weights[0])
            arrays = [buffer.array[: buffer.num_gradients] for buffer in buffers]
            for array in (*arrays, *totals.values()):
                array.mul_(factor)
        means = {i: part for buffer in buffers for i, part in buffer.parts.items()} | totals
        for index, parameter in enumerate(self._parameters):
            has_any = with_gradient[index] > 0
            parameter.grad = means[index].to(parameter.dtype) if has_any else None
        return small_sums

    def add(self, values: torch.Tensor, name: str) -> None:
        """Replace values by the ring's sums, during a forward or backward pass.

        If a member is lost, the values do not change, and `finish` raises the error. It is not
        raised here, because errors in passes are reported as errors of the user's code.

        Args:
            values: float32, float64 or int64, contiguous, with the same shape on all ranks.
            name: Pairs the calls of the ranks.
        """
        self._pending.run(sum_in_place(values, name))

    def spans(self, since: float) -> list[tuple[str, float, float]]:
        """The names, begins and ends of this step's sums, in seconds from a time on.

        An end is when it was noticed: at the next bucket, or by `finish`.

        Args:
            since: Seconds of the monotonic clock.
        """
        return [(name, begin - since, end - since) for name, begin, end in self._spans]

    def abandon(self) -> None:
        """Discard a step that failed, possibly during its backward pass.

        Unfinished collectives may still write to the current buffers, so the next step allocates
        new ones.
        """
        self._is_active = False
        self._last_buffer = None
        self._early_buffers.clear()
        self._buffer_of.clear()
        self._pending = PendingCollectives()
        for parameter in self._parameters:
            parameter.grad = None

    def _make_buckets(self) -> list[Bucket]:
        buckets = []
        parameters = self._parameters
        dense = [index for index in range(len(parameters)) if index not in self._sparse_indices]
        for is_short in (True, False):
            indices = [i for i in dense if self._is_compressed(i) == is_short]
            sizes = [parameters[i].numel() * self._wire(i).itemsize for i in indices]
            kinds = [(self._wire(i), parameters[i].device.type) for i in indices]
            name = self._options.name
            if is_short:
                name = f"{name}.{self._options.compression}"
            for bucket in in_buckets(sizes, kinds, self._options.bucket_bytes, name):
                members = tuple(indices[index] for index in bucket.places)
                buckets.append(Bucket(bucket.name, members))
        return buckets

    def _may_carry_numbers(self, bucket: Bucket) -> bool:
        """Whether a bucket is on the CPU and precise enough to carry the step's numbers."""
        index = bucket.places[0]
        return not self._is_compressed(index) and self._parameters[index].device.type == "cpu"

    def _allocate(self, bucket: Bucket, num_numbers: int = 0) -> _BucketBuffer:
        """Allocate the buffer of a bucket, with room for numbers after the gradients."""
        members = [self._parameters[index] for index in bucket.places]
        sizes = [parameter.numel() for parameter in members]
        array = torch.empty(
            sum(sizes) + num_numbers,
            dtype=self._wire(bucket.places[0]) if members else torch.float64,
            device=members[0].device if members else None,
        )
        *parts, _ = array.split([*sizes, num_numbers])
        shaped = {
            index: part.view(parameter.shape)
            for index, part, parameter in zip(bucket.places, parts, members, strict=True)
        }
        return _BucketBuffer(bucket, array, shaped, sum(sizes))

    def _fill_last(self, numbers: NDArray[np.float64]) -> _BucketBuffer:
        """Fill the last bucket with its weighted gradients and the step's numbers."""
        last = self._last_buffer
        if last is None:
            last = self._last_buffer = self._allocate(self._last_bucket, len(numbers))
        last.missing = set(last.bucket.places)
        self._fill(last)
        if self._factor != 1.0:
            last.array[: last.num_gradients].mul_(self._factor)
        last.array[last.num_gradients :].copy_(from_numpy(numbers))
        return last

    def _wire(self, index: int) -> torch.dtype:
        return _WIRE_DTYPES[self._parameters[index].dtype]

    def _is_compressed(self, index: int) -> bool:
        return self._options.compression != "none" and self._wire(index) == torch.float32

    def _on_gradient(self, index: int, parameter: torch.nn.Parameter) -> None:
        """Copy a parameter's gradient to its bucket; autograd calls this in a backward pass."""
        if not self._is_active:
            return
        buffer = self._buffer_of[index]
        if buffer.is_sent:
            raise UserCodeError(
                f"The parameter {self._names[index]} received two gradients in one backward pass,"
                " but the first one is already being reduced over the ring.",
                hint="For activation checkpoints, use"
                " torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
            )
        self._copy(buffer, index)
        buffer.missing.discard(index)
        if not buffer.missing:
            self._send(buffer)

    def _fill(self, buffer: _BucketBuffer) -> None:
        """Fill a bucket's missing parts: by gradients of earlier passes, or zeros."""
        for index in buffer.missing:
            if self._parameters[index].grad is None:
                buffer.parts[index].zero_()
            else:
                self._copy(buffer, index)

    def _copy(self, buffer: _BucketBuffer, index: int) -> None:
        parameter, part = self._parameters[index], buffer.parts[index]
        gradient = parameter.grad.detach()
        if gradient.data_ptr() == part.data_ptr():
            return  # Autograd has accumulated the gradient of a second use in the buffer itself.
        part.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        if parameter.dtype == part.dtype:
            # This frees the gradient's own memory for the next gradients.
            parameter.grad = part

    @property
    def _factor(self) -> float:
        """This rank's factor for its gradients; 1 if all ranks have the same number of examples.

        It is applied when a bucket is sent: until then, a gradient may still accumulate, and the
        user's hooks read it.
        """
        return self._weight / self._usual_weight

    def _send(self, buffer: _BucketBuffer) -> None:
        buffer.is_sent = True
        name, array = buffer.bucket.name, buffer.array
        if self._factor != 1.0:
            array.mul_(self._factor)
        if self._is_compressed(buffer.bucket.places[0]):
            self._start(name, sum_compressed(array, name, self._options.compression))
        else:
            self._start(name, sum_in_place(array, name))
        self._pending.poll()

    def _start(self, name: str, collective: Collective) -> None:
        is_timed = self._options.is_timed
        self._pending.start(_timed(name, collective, self._spans) if is_timed else collective)


def _timed(name: str, collective: Collective, spans: list[tuple[str, float, float]]) -> Collective:
    """A collective that adds its time to spans when it is complete."""
    begin = time.monotonic()
    yield from collective
    spans.append((name, begin, time.monotonic()))


class _RowSum:
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
        self.name = f"{NAME}.rows.{name}"
        self._shape, self._dtype, self._device = parameter.shape, parameter.dtype, parameter.device
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
        wire_dtype = _WIRE_DTYPES[self._dtype]
        self._indices = sendable(indices.contiguous())
        rows = values.reshape(len(indices), self._width).to(wire_dtype)
        self._values = sendable(rows.contiguous() * factor)

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
            indices = yield hvd.allgather_async(self._indices, name=f"{self.name}.indices")
            values = yield hvd.allgather_async(self._values, name=f"{self.name}.values")
            self._indices, inverse = torch.unique(indices, return_inverse=True)
            self._values = values.new_zeros(len(self._indices), self._width)
            # The rows are added in the order of the ranks, so that all ranks get the same bits.
            self._values.index_add_(0, inverse, values)
            return
        table = self._values.new_zeros(self._shape[0], self._width + 1)
        table[self._indices, :-1] = self._values
        table[self._indices, -1] = 1
        yield hvd.allreduce_async_(table, op=hvd.Sum, name=self.name)
        self._indices = table[:, -1].nonzero()[:, 0]
        self._values = table[self._indices, :-1]

    def total(self) -> torch.Tensor:
        """Return the sum as a coalesced sparse tensor of the parameter's type."""
        values = self._values.reshape(-1, *self._shape[1:]).to(self._dtype)
        total = torch.sparse_coo_tensor(
            self._indices[None], values, self._shape, is_coalesced=True, check_invariants=False
        )
        return total.to(self._device)


FRAMEWORK: Framework = TorchFramework(HOROVOD, TorchCollectives(), Reducer)
