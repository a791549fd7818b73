"""What the forward pass changes, as sums over a ring: statistics and counters.

Mostly these are buffers. Some modules, as those of Keras, keep them as parameters that are never
trained; both are called buffers here.

A rank's forward pass changes its own; the step takes them back until all sums are there. Then every
rank has the mean over the examples. Whole numbers go on as they did on one rank where they count
passes, and by the sum where they count examples. What is neither, such as a queue of examples and
the pointer into it, no ring can keep, and a trial finds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import UserCodeError

__all__ = ["Kept", "Moving"]

_OF_NORMS = ("num_batches_tracked", "running_mean", "running_var")
"""Buffers of PyTorch's own layers, whose rule is known."""
_FAR = 1 << 20
"""Further than any pointer goes."""


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

    @property
    def is_mean(self) -> bool:
        """Whether the ring's value is a mean; else it is a whole number, which goes on."""
        return bool(self.tensor.is_floating_point() or self.tensor.is_complex())

    @property
    def num_sums(self) -> int:
        return int(self.tensor.numel()) * (2 if self.tensor.is_complex() else 1)


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

    def __init__(self, module: nn.Module, forward: Callable[[int], object]) -> None:
        """Find them by forward passes, which nothing shows of afterwards.

        Args:
            module: In training.
            forward: Runs it on the same examples, all of them there so many times.

        Raises:
            UserCodeError: One of them is nothing that a ring can keep.
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
        forward(1)
        changed = [
            place.tensor is not tensor or not torch.equal(tensor, value)
            for place, tensor, value in zip(
                self._places, before.tensors, before.values, strict=True
            )
        ]
        self.put_back(before)
        self._constant = [p for p, is_one in zip(self._places, changed, strict=True) if not is_one]
        self._places = [p for p, is_one in zip(self._places, changed, strict=True) if is_one]
        self._count_examples: set[str] = set()
        """Names of whole numbers that count examples; the others count passes."""
        if any(place.key not in _OF_NORMS for place in self._places):
            self._try_rules(forward)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers that change, by name."""
        return {place.name: place.tensor for place in self._places}

    @property
    def num_sums(self) -> int:
        """How many numbers they are."""
        return sum(place.num_sums for place in self._places)

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
            after = _numbers(place.tensor.detach())
            if place.is_mean:
                found.append(after.flatten() * num_examples)
            else:
                found.append((after - _numbers(before)).flatten())
        return found

    def move(self, totals: torch.Tensor, num_examples: float, num_ranks: float) -> None:
        """Give the buffers what their sums over the ring say.

        Args:
            totals: Shape (num_sums,), float64.
            num_examples: Of the step.
            num_ranks: Those that had examples.
        """
        sizes = [place.num_sums for place in self._places]
        with torch.no_grad():
            for place, total in zip(self._places, torch.split(totals, sizes), strict=True):
                tensor = place.tensor
                if place.is_mean:
                    mean = (total / num_examples).to(tensor.device)
                    if tensor.is_complex():
                        mean = torch.view_as_complex(mean.reshape(-1, 2))
                    tensor.copy_(mean.reshape(tensor.shape))
                    continue
                if place.name not in self._count_examples:
                    total = torch.round(total / num_ranks)
                tensor.copy_(tensor.double() + total.reshape(tensor.shape).to(tensor.device))

    def _try_rules(self, forward: Callable[[int], object]) -> None:
        """Find out by repeated examples what each buffer is of them."""
        before = [_numbers(place.tensor) for place in self._places]
        once, twice, thrice = (self._after(forward, times) for times in (1, 2, 3))
        for place, start, one, two, three in zip(
            self._places, before, once, twice, thrice, strict=True
        ):
            if place.key in _OF_NORMS or torch.equal(one, two):
                continue
            is_sum = torch.allclose(three - two, two - one, rtol=1e-4, atol=1e-6)
            if place.is_mean:
                if is_sum and not torch.allclose(two, one, rtol=1e-3, atol=1e-5):
                    raise self._unusable(place, "is a sum over them")
                if bool(((one == start) & (two != start)).any()):
                    raise self._unusable(place, "has other places for each of them")
            elif is_sum and torch.equal(two - start, 2 * (one - start)):
                self._count_examples.add(place.name)
            else:
                raise self._unusable(place, "counts neither them nor passes")
        far = self._ways_from_far(forward)
        for place, start, one, way in zip(self._places, before, once, far, strict=True):
            if place.name in self._count_examples and not torch.equal(one - start, way):
                raise self._unusable(place, "points at one of them")

    def _after(self, forward: Callable[[int], object], times: int) -> list[torch.Tensor]:
        kept = self.keep()
        forward(times)
        found = [_numbers(place.tensor) for place in self._places]
        self.put_back(kept)
        return found

    def _ways_from_far(self, forward: Callable[[int], object]) -> list[torch.Tensor]:
        """By how much buffers change where those that count examples have counted many."""
        counting = [each for each in self._places if each.name in self._count_examples]
        if not counting:
            return [torch.zeros(()) for _ in self._places]
        kept = self.keep()
        for place in counting:
            place.tensor.add_(min(_FAR, torch.iinfo(place.tensor.dtype).max // 2))
        starts = [_numbers(place.tensor) for place in self._places]
        try:
            forward(1)
        except Exception as e:
            # What a pointer beyond its bound does is up to the user's code.
            raise self._unusable(counting[0], "points at one of them") from e
        found = [_numbers(p.tensor) - start for p, start in zip(self._places, starts, strict=True)]
        self.put_back(kept)
        return found

    def _unusable(self, place: _Place, what: str) -> UserCodeError:
        return UserCodeError(
            f"The forward pass of {self._label} changes its buffer {place.name!r} by the number of"
            f" examples that it is given: it {what}. Each rank of a ring has some of the examples,"
            " so the buffer would be another one than in one process.",
            cure="Keep means over the examples (in the place of sums), and whole numbers that count"
            " passes or examples without a bound. A queue of examples cannot be kept in a buffer:"
            " compare the examples of a batch with each other.",
        )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor as float64, a complex number as two."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).clone())
    return tensor.double().clone()
