"""How a step's gradients are made, added over the ring, and bounded."""

import cmath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

__all__ = ["StepOptions", "StepReducer", "are_finite", "bound", "sparse_parameters"]


class StepReducer(Protocol):
    """Adds the gradients of a step over the ring, while the backward pass makes others."""

    def begin(self, weight: float) -> None:
        """Prepare for the last backward pass of a step.

        Args:
            weight: What makes sums of this rank's gradients; 0 where it has none.
        """

    def finish(self, small: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """Wait until all is added; returns the sums of `small`.

        Args:
            small: Numbers.
            weight: What this rank counts in the mean.

        The `grad` of each parameter is then the weighted mean over the ranks, in which one that has
        none counts as zero; and None where no rank has one.

        Raises:
            CollectiveFailed: A member was lost.
        """

    def add(self, values: torch.Tensor, name: str) -> None:
        """Replace numbers by the ring's sums amid a forward or a backward pass, and wait for them.

        Where a member is lost they stay as they are, and `finish` raises CollectiveFailed.
        """

    def abandon(self) -> None:
        """Give a step up that was begun."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How gradients are made and bounded."""

    clip_norm: float = 0.0
    """Longest gradient over all parameters; 0 means no limit."""
    clip_value: float = 0.0
    """Largest absolute value in it; 0 means no limit."""
    num_parts: int = 1
    """Parts into which a rank cuts its examples of a step."""
    scales_loss: bool = False
    """Whether the loss is scaled up so that float16 can hold its gradients."""
    sums_batch_norm: bool = False
    """Whether BatchNorm takes the examples of all ranks together; each is one part then."""
    compiles: bool = False
    """Whether the model's passes are compiled."""
    class_weight: Sequence[float] = ()
    """Weights of examples by their class, from 0 on; none for the same of all."""


def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether all gradients are finite numbers."""
    gradients = [grad for each in parameters if (grad := each.grad) is not None]
    values = [each._values() if each.is_sparse else each for each in gradients]
    if not values:
        return True
    # A sum takes a tenth of the time of looking at each number, and only large ones overflow in it.
    if values[0].device.type == "cpu":
        total = sum([each.sum().item() for each in values])
    else:
        total = torch.stack([each.sum() for each in values]).sum().item()
    return cmath.isfinite(total) or all(bool(torch.isfinite(each).all()) for each in values)


def bound(parameters: Sequence[nn.Parameter], options: StepOptions) -> None:
    """Bound the mean gradients of a step; every rank has the same ones and bounds them alike."""
    if options.clip_value:
        nn.utils.clip_grad_value_(parameters, options.clip_value)
    if options.clip_norm:
        nn.utils.clip_grad_norm_(parameters, options.clip_norm)


def sparse_parameters(module: nn.Module) -> set[str]:
    """Names of a module's parameters whose gradients are rows, as its embeddings say."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    own = {id(part.weight) for part in module.modules() if isinstance(part, kinds) and part.sparse}
    return {name for name, parameter in module.named_parameters() if id(parameter) in own}
