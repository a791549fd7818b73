"""What the forward pass changes, as sums over a ring: statistics and counters.

Mostly these are buffers. Some modules, as those of Keras, keep them as parameters that are never
trained; both are called buffers here.

A rank's forward pass changes its own; the step takes them back until all sums are there. Then every
rank has the mean over the examples, and of whole numbers by how much they went on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import UserCodeError

__all__ = ["Kept", "Moving"]


@dataclass(frozen=True)
class _Place:
    """Where a module has a buffer."""

    name: str
    holder: dict[str, Any]
    """The module's buffers, or its parameters."""
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        found = self.holder[self.key]
        assert found is not None
        return found


@dataclass(frozen=True)
class Kept:
    """Buffers as they are before a forward pass."""

    tensors: list[torch.Tensor]
    """Those that change."""
    values: list[torch.Tensor]
    """Copies of these."""
    constant: list[tuple[torch.Tensor, int]]
    """The others, and PyTorch's number of their version."""


class Moving:
    """The buffers of a module that change in training."""

    def __init__(self, module: nn.Module, forward: Callable[[], object]) -> None:
        """Find them by a forward pass, which nothing shows of afterwards.

        Args:
            module: In training.
            forward: Runs it on some examples.
        """
        self._label = type(module).__name__
        places: dict[int, _Place] = {}
        for prefix, owner in module.named_modules():
            for holder in (owner._buffers, owner._parameters):
                for key, buffer in holder.items():
                    if buffer is not None and not buffer.requires_grad:
                        name = f"{prefix}.{key}" if prefix else key
                        places.setdefault(id(buffer), _Place(name, holder, key))
        self._places, self._constant = list(places.values()), []
        before = self.keep()
        forward()
        changed = [
            place.tensor is not tensor or not torch.equal(tensor, value)
            for place, tensor, value in zip(
                self._places, before.tensors, before.values, strict=True
            )
        ]
        self.put_back(before)
        self._constant = [p for p, is_one in zip(self._places, changed, strict=True) if not is_one]
        self._places = [p for p, is_one in zip(self._places, changed, strict=True) if is_one]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers that change, by name."""
        return {place.name: place.tensor for place in self._places}

    @property
    def num_sums(self) -> int:
        """How many numbers they are."""
        return sum(place.tensor.numel() for place in self._places)

    def keep(self) -> Kept:
        """What `put_back` and `sums` need to know of the time before a forward pass."""
        tensors = [place.tensor for place in self._places]
        constant = [(place.tensor, place.tensor._version) for place in self._constant]
        return Kept(tensors, [tensor.clone() for tensor in tensors], constant)

    def put_back(self, kept: Kept) -> None:
        """Give the module the same tensors with the same values again."""
        with torch.no_grad():
            for place, tensor, value in zip(self._places, kept.tensors, kept.values, strict=True):
                place.holder[place.key] = tensor
                tensor.copy_(value)

    def sums(self, kept: Kept, num_examples: int) -> list[torch.Tensor]:
        """What a rank's forward pass adds to the ring's sums, one row for each buffer.

        Args:
            kept: Before it.
            num_examples: Of the rank.

        Raises:
            UserCodeError: A buffer was changed that was not when the model was tried.
        """
        for place, (tensor, version) in zip(self._constant, kept.constant, strict=True):
            if place.tensor is not tensor or tensor._version != version:
                raise UserCodeError(
                    f"The forward pass of {self._label} changes its buffer {place.name!r} now, and"
                    " did not when it was tried, so the ring does not add it up.",
                    cure="Change it in every forward pass of the training, or keep it as an"
                    " attribute that is no buffer.",
                )
        found = []
        for place, before in zip(self._places, kept.values, strict=True):
            after = place.tensor.detach()
            if after.is_floating_point():
                found.append(after.double().flatten() * num_examples)
            else:
                found.append((after.double() - before.double()).flatten())
        return found

    def move(self, totals: torch.Tensor, num_examples: float, num_ranks: float) -> None:
        """Give the buffers what their sums over the ring say.

        Args:
            totals: Shape (num_sums,), float64.
            num_examples: Of the step.
            num_ranks: Those that had examples.
        """
        sizes = [place.tensor.numel() for place in self._places]
        with torch.no_grad():
            for place, total in zip(self._places, torch.split(totals, sizes), strict=True):
                tensor = place.tensor
                total = total.reshape(tensor.shape).to(tensor.device)
                if tensor.is_floating_point():
                    tensor.copy_(total / num_examples)
                else:
                    tensor.copy_(tensor.double() + torch.round(total / num_ranks))
