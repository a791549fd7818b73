"""A step's gradients: the interface that reduces them, clipping, and loss scaling.

Overflows of float16 are detected in the reduced gradients, which are the same on all ranks; so all
ranks skip the same steps and continue with the same factor.
"""

import cmath
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Array

__all__ = ["LossScale", "StepReducer", "are_finite", "clip", "sparse_parameters"]

_INITIAL_LOSS_SCALE, _LOSS_SCALE_GROWTH_STEPS = 2.0**16, 2000


class StepReducer(Protocol):
    """Sums the gradients of a step over the ring, while the backward pass computes others."""

    def begin(self, weight: float) -> None:
        """Prepare for the last backward pass of a step.

        Args:
            weight: Factor that turns this rank's mean gradients into sums; 0 if it has no
                examples.
        """

    def finish(self, small: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """Wait for the reduction of all gradients; returns the ring's sums of `small`.

        The `grad` of each parameter is then the weighted mean over the ranks, where a rank without
        a gradient counts as zero; it is None if no rank has a gradient.

        Args:
            small: The step's numbers, with the same length on all ranks.
            weight: Weight of this rank in the mean.

        Raises:
            CollectiveFailed: A member was lost.
        """

    def add(self, values: torch.Tensor, name: str) -> None:
        """Replace values by the ring's sums during a forward or backward pass, and wait for them.

        If a member is lost, the values do not change, and `finish` raises CollectiveFailed.
        """

    def abandon(self) -> None:
        """Discard the current step."""


def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether all gradients are finite numbers."""
    gradients = [grad for parameter in parameters if (grad := parameter.grad) is not None]
    values = [grad._values() if grad.is_sparse else grad for grad in gradients]
    if not values:
        return True
    # A sum takes a tenth of the time of `isfinite`. It overflows only for large gradients, which
    # are then checked element by element.
    if values[0].device.type == "cpu":
        total = sum([value.sum().item() for value in values])
    else:
        total = torch.stack([value.sum() for value in values]).sum().item()
    return cmath.isfinite(total) or all(bool(torch.isfinite(value).all()) for value in values)


def clip(parameters: Sequence[nn.Parameter], options: StepOptions) -> None:
    """Clip the reduced gradients of a step, which are the same on all ranks."""
    if options.clip_value:
        nn.utils.clip_grad_value_(parameters, options.clip_value)
    if options.clip_norm:
        nn.utils.clip_grad_norm_(parameters, options.clip_norm)


def sparse_parameters(module: nn.Module) -> set[str]:
    """Return the names of the weights of a module's embeddings with `sparse=True`."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    sparse_ids = {
        id(part.weight) for part in module.modules() if isinstance(part, kinds) and part.sparse
    }
    return {name for name, parameter in module.named_parameters() if id(parameter) in sparse_ids}


class LossScale:
    """Halves the factor after a gradient that is not finite; doubles it after many finite steps."""

    def __init__(self) -> None:
        """Start with the same factor as `torch.amp.GradScaler`."""
        self.variable = Array(np.array([_INITIAL_LOSS_SCALE, 0.0]))
        """The factor, and the number of steps since it changed; part of the ring's state."""

    @property
    def factor(self) -> float:
        """The current factor."""
        return float(self.variable.numpy()[0])

    @property
    def is_least(self) -> bool:
        """Whether the factor is at its minimum."""
        return self.factor <= 1.0

    def update(self, *, is_finite: bool) -> None:
        """Update the factor after a step."""
        factor, num_steps = self.variable.numpy().tolist()
        if not is_finite:
            self.variable.assign([max(1.0, factor / 2), 0.0])
        elif num_steps + 1 == _LOSS_SCALE_GROWTH_STEPS:
            self.variable.assign([factor * 2, 0.0])
        else:
            self.variable.assign([factor, num_steps + 1])
