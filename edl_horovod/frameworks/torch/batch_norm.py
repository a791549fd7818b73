"""BatchNorm over the examples of all ranks, each example counted once (`train.batch_norm`).

PyTorch's own SyncBatchNorm needs torch.distributed, which this ring does not use. Here each layer
sums one row of numbers over the ring in the forward pass and one in the backward pass; autograd
derives the rest from the formula. `single_values` is for layers that use a rank's own examples.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""PyTorch's BatchNorm layers."""
_NAME = "edl.batch_norm"


class RingStatistics:
    """Sums of the statistics of one model's layers over the ring, during a step."""

    def __init__(self) -> None:
        """Create it without a ring: until `over_ring`, this rank's examples are the whole batch."""
        self._add: Callable[[torch.Tensor, str], None] | None = None
        self._has_examples = True
        self.weight = 1.0
        """The weight of this rank's gradients, set before its backward pass begins."""
        self._calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def over_ring(
        self, add: Callable[[torch.Tensor, str], None], *, has_examples: bool
    ) -> Iterator[None]:
        """Sum over the ring inside the context; all ranks enter it in the same steps.

        Args:
            add: Replaces a tensor by its sum over the ring; the name pairs the ranks' calls.
            has_examples: Whether this rank's examples count. A rank without examples runs the
                model on sample examples, because every rank must take part in the same sums.
        """
        self._add, self._has_examples = add, has_examples
        self._calls.clear()
        try:
            yield
        finally:
            self._add, self._has_examples = None, True

    def total(self, values: torch.Tensor, layer: str) -> torch.Tensor:
        """Return the sum of the ranks' `values`; without a ring, `values` itself.

        Args:
            values: float64, one axis.
            layer: The layer's name in the model.
        """
        if self._add is None:
            return values
        self._calls[layer] += 1
        total: torch.Tensor = _Total.apply(values, self, f"{_NAME}.{layer}.{self._calls[layer]}")
        return total

    def sum_now(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sum over the ring; a rank whose examples do not count adds zeros."""
        total = values.clone() if self._has_examples else torch.zeros_like(values)
        if self._add is not None:
            # All ranks reach this: they run the same layers in the same order, with or without
            # examples.
            self._add(total, name)
        return total


class _Total(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch.
    """A sum over the ring; its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, statistics: RingStatistics, name: str
    ) -> torch.Tensor:
        ctx.statistics, ctx.name = statistics, name
        return statistics.sum_now(values, name)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # The gradient of the weighted sum of all ranks' losses. This rank's weight is applied again
        # when its gradients are reduced.
        weight, name = ctx.statistics.weight, f"{ctx.name}.backward"
        return ctx.statistics.sum_now(gradients[0] * weight, name) / weight, None, None


class _RingBatchNorm(_BatchNorm):  # type: ignore[misc]  # As above.
    """A BatchNorm layer that shares the parameters and buffers of the layer that it replaces."""

    def __init__(self, layer: _BatchNorm, name: str, statistics: RingStatistics) -> None:
        names = ("num_features", "eps", "momentum", "track_running_stats")
        super().__init__(**{name: getattr(layer, name) for name in names}, affine=False)
        # The same objects, so that references to them, as in an optimizer, stay valid.
        self._parameters = layer._parameters
        self._buffers = layer._buffers
        self.affine, self.training = layer.affine, layer.training
        self._name, self._statistics = name, statistics

    def _check_input_dim(self, inputs: torch.Tensor) -> None:
        """Accept any shape: the layer that this one replaces has already checked it."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise a batch, shape (examples, features, ...)."""
        if not self.training:
            return super().forward(inputs)
        values = inputs if inputs.dtype == torch.float64 else inputs.float()
        axes = [axis for axis in range(values.ndim) if axis != 1]
        shape = [1, -1, *[1] * (values.ndim - 2)]
        mean = values.mean(axes)
        # In float32, the difference of two large squares below would be mostly rounding error.
        local_mean = mean.double()
        spread = (values - mean.view(shape)).square().sum(axes).double()
        count = values.numel() // values.shape[1]
        local_squares = spread + count * local_mean.square()
        row = [local_mean.new_tensor([count]), count * local_mean, local_squares]
        total = self._statistics.total(torch.cat(row), self._name)
        all_count, sums, squares = total.split([1, self.num_features, self.num_features])
        all_mean = sums / all_count
        variance = (squares / all_count - all_mean.square()).clamp(min=0)
        if self.track_running_stats:
            self._update(all_mean.detach(), variance.detach(), all_count.detach())
        factor = torch.rsqrt(variance + self.eps).to(values.dtype)
        normalised = (values - all_mean.to(values.dtype).view(shape)) * factor.view(shape)
        if self.weight is not None:
            normalised = normalised * self.weight.view(shape)
        if self.bias is not None:
            normalised = normalised + self.bias.view(shape)
        return normalised.to(inputs.dtype)

    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Update the running statistics."""
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * count / (count - 1).clamp(min=1)
        for buffer, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            buffer.lerp_(value.to(buffer.dtype), momentum)


def with_ring_statistics(module: nn.Module, statistics: RingStatistics) -> nn.Module:
    """Replace the BatchNorm layers of a module.

    Args:
        module: A built module, which is changed.
        statistics: The statistics of this module.

    Returns:
        The same module, or a new one if the module itself is a BatchNorm layer.
    """
    replaced: dict[int, nn.Module] = {}

    def replacement(layer: nn.Module, name: str) -> nn.Module:
        if not isinstance(layer, KINDS):
            return layer
        if id(layer) not in replaced:
            replaced[id(layer)] = _RingBatchNorm(layer, name, statistics)
        return replaced[id(layer)]

    for prefix, owner in list(module.named_modules()):
        for key, child in owner._modules.items():
            owner._modules[key] = replacement(child, f"{prefix}.{key}".removeprefix("."))
    return replacement(module, "")


@contextlib.contextmanager
def single_values(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Let layers train on a single value of each feature inside the context.

    PyTorch refuses it, but a rank may be left with one example. A layer that follows a convolution
    has many values of each feature even then, and computes what it computes outside the context.

    Args:
        layers: BatchNorm layers, each one of `KINDS`.
    """
    overridden = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(_forward, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, overridden, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def _forward(forward: Callable[[torch.Tensor], torch.Tensor], input: torch.Tensor) -> torch.Tensor:
    """Call a layer's `forward`, whose parameter has that name, with a single value twice."""
    if input.ndim > 1 and input.numel() == input.shape[1]:
        # The same mean and a variance of 0, as a single value has.
        return forward(torch.cat([input, input]))[:1]
    return forward(input)
