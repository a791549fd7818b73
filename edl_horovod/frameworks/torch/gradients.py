"""The options of a step's gradients, the interface that reduces them, and clipping."""

import cmath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

__all__ = ["StepOptions", "StepReducer", "are_finite", "clip", "sparse_parameters"]


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


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options for computing and clipping gradients."""

    clip_norm: float = 0.0
    """Maximum global norm of the gradients; 0 means no limit."""
    clip_value: float = 0.0
    """Maximum absolute value of a gradient's elements; 0 means no limit."""
    num_parts: int = 1
    """The number of parts into which a rank splits its examples of a step."""
    scales_loss: bool = False
    """Whether the loss is scaled up so that float16 can hold its gradients."""
    sums_batch_norm: bool = False
    """Whether BatchNorm uses the examples of all ranks; then `num_parts` must be 1."""
    compiles: bool = False
    """Whether the model is compiled for training."""
    class_weight: Sequence[float] = ()
    """Weights of examples by class index; empty if all weigh the same."""


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
