"""BatchNorm over the examples of all ranks, each example counted once (`train.batch_norm`).

PyTorch's own SyncBatchNorm sums by torch.distributed, which has no part in this ring. Here each
layer adds up one row of numbers in the forward pass and one in the backward pass; all the rest is
what autograd makes of the formula.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["RingStatistics", "with_ring_statistics"]

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""The layers that are replaced."""
_NAME = "edl.batch_norm"


class RingStatistics:
    """The sums of one model's layers, while a step is under way on a ring."""

    def __init__(self) -> None:
        """Begin without a ring: a rank's own examples are all that there are."""
        self._add: Callable[[torch.Tensor, str], None] | None = None
        self._has_examples = True
        self._weight = 1.0
        self._calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def over_ring(
        self, add: Callable[[torch.Tensor, str], None], *, has_examples: bool
    ) -> Iterator[None]:
        """Add up over the ring meanwhile; all ranks do so in the same steps.

        Args:
            add: Replaces a tensor by the sum over the ring; the name pairs the ranks' calls.
            has_examples: Whether this rank's examples count. One without any runs the model on
                some that stand for all, because every rank must make the same sums.
        """
        self._add, self._has_examples = add, has_examples
        self._calls.clear()
        try:
            yield
        finally:
            self._add, self._has_examples = None, True

    def weigh(self, weight: float) -> None:
        """Say what this rank's gradients count, before its backward pass begins."""
        self._weight = weight

    def total(self, values: torch.Tensor, layer: str) -> torch.Tensor:
        """The sum over the ring of what the ranks have; itself without a ring.

        Args:
            values: A row of float64.
            layer: The layer's name in the model.
        """
        if self._add is None:
            return values
        self._calls[layer] += 1
        found: torch.Tensor = _Total.apply(values, self, f"{_NAME}.{layer}.{self._calls[layer]}")
        return found

    def gradient_sum(self, gradient: torch.Tensor, name: str) -> torch.Tensor:
        """The gradient of all ranks' losses by their weights, as a part of this rank's own."""
        return self.sum_now(gradient * self._weight, name) / self._weight

    def sum_now(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """The ring's sum of numbers; those of a rank whose examples do not count are zeros."""
        total = values.clone() if self._has_examples else torch.zeros_like(values)
        if self._add is not None:
            # All ranks: they run the same layers in the same order, with examples or without.
            self._add(total, name)
        return total


class _Total(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch.
    """A sum over the ring, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, statistics: RingStatistics, name: str
    ) -> torch.Tensor:
        ctx.statistics, ctx.name = statistics, name
        return statistics.sum_now(values, name)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.statistics.gradient_sum(gradients[0], f"{ctx.name}.backward"), None, None


class _RingBatchNorm(nn.modules.batchnorm._BatchNorm):  # type: ignore[misc]  # As above.
    """A BatchNorm layer with another's parameters and buffers, under the same names."""

    def __init__(
        self, layer: nn.modules.batchnorm._BatchNorm, name: str, statistics: RingStatistics
    ) -> None:
        super().__init__(
            layer.num_features,
            eps=layer.eps,
            momentum=layer.momentum,
            affine=False,
            track_running_stats=layer.track_running_stats,
        )
        # The same objects: whoever holds them, as an optimizer does, holds the layer's.
        self._parameters = layer._parameters
        self._buffers = layer._buffers
        self.affine, self.training = layer.affine, layer.training
        self._name, self._statistics = name, statistics

    def _check_input_dim(self, inputs: torch.Tensor) -> None:
        """The layer that this one replaces has looked at them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise a batch, shape (examples, features, ...)."""
        if not self.training:
            return super().forward(inputs)
        values = inputs if inputs.dtype == torch.float64 else inputs.float()
        axes = [axis for axis in range(values.ndim) if axis != 1]
        shape = [1, -1, *[1] * (values.ndim - 2)]
        mean = values.mean(axes)
        # What is left of large squares after a subtraction would be noise in float32.
        own_mean = mean.double()
        spread = (values - mean.view(shape)).square().sum(axes).double()
        count = values.numel() // values.shape[1]
        row = [own_mean.new_tensor([count]), count * own_mean, spread + count * own_mean.square()]
        total = self._statistics.total(torch.cat(row), self._name)
        all_count, sums, squares = total.split([1, self.num_features, self.num_features])
        all_mean = sums / all_count
        variance = (squares / all_count - all_mean.square()).clamp(min=0)
        if self.track_running_stats:
            self._note(all_mean.detach(), variance.detach(), all_count.detach())
        factor = torch.rsqrt(variance + self.eps).to(values.dtype)
        found = (values - all_mean.to(values.dtype).view(shape)) * factor.view(shape)
        if self.weight is not None:
            found = found * self.weight.view(shape)
        if self.bias is not None:
            found = found + self.bias.view(shape)
        return found.to(inputs.dtype)

    def _note(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * count / (count - 1).clamp(min=1)
        for buffer, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            buffer.lerp_(value.to(buffer.dtype), share)


def with_ring_statistics(module: nn.Module, statistics: RingStatistics) -> nn.Module:
    """The same module with its BatchNorm layers replaced; a new one where it is such a layer.

    Args:
        module: Built; it is changed.
        statistics: Of this module.
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
            if child is not None:
                name = f"{prefix}.{key}" if prefix else key
                owner._modules[key] = replacement(child, name)
    return replacement(module, "")
