"""What the forward pass changes, as sums over a ring: statistics and counters.

Mostly these are buffers. Some modules, as those of Keras, keep them as parameters that are never
trained, and some write into what is trained (a bound, a norm); all are called buffers here.

A rank's forward pass changes its own; the step takes them back until all sums are there. Then every
rank has the mean over the examples. Whole numbers go on as they did on one rank where they count
passes, and by the sum where they count examples. What is neither, such as a queue of examples and
the pointer into it, no ring can keep, and a trial finds it.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import leaves, map_leaves, repeated, some_examples
from edl_horovod.frameworks.torch.variables import bytes_of

__all__ = ["Kept", "Moving", "unchanged"]

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
    def kind(self) -> str:
        return "parameter" if isinstance(self.tensor, nn.Parameter) else "buffer"

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

    def __init__(self, module: nn.Module, forward: Callable[[Any], object], features: Any) -> None:
        """Find them by forward passes, which nothing shows of afterwards.

        Args:
            module: In training.
            forward: Runs it.
            features: Of some examples, at least two.

        Raises:
            UserCodeError: One of them is nothing that a ring can keep.
        """
        self._label = type(module).__name__
        self._module, self._forward = module, forward
        places: dict[int, _Place] = {}
        for prefix, owner in module.named_modules():
            for holder in (owner._buffers, owner._parameters):
                for key, buffer in holder.items():
                    if buffer is not None:
                        name = f"{prefix}.{key}" if prefix else key
                        places.setdefault(id(buffer), _Place(name, holder, key))
        self._places, self._constant = list(places.values()), []
        changed = self._tried(features)
        self._constant = [p for p, is_one in zip(self._places, changed, strict=True) if not is_one]
        self._places = [p for p, is_one in zip(self._places, changed, strict=True) if is_one]
        self._count_examples: set[str] = set()
        """Names of whole numbers that count examples; the others count passes."""
        if any(place.key not in _OF_NORMS for place in self._places):
            self._try_rules(features)
        if any(place.tensor.requires_grad for place in self._places):
            self._require_same_for_all_examples(features)

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
        constant = [(tensor := each.holder[each.key], tensor._version) for each in self._constant]
        return Kept(tensors, [tensor.clone() for tensor in tensors], constant)

    def put_back(self, kept: Kept) -> None:
        """Give the module the same tensors with the same values again."""
        if not self._places:
            return
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
            if place.holder[place.key] is not tensor or tensor._version != version:
                raise UserCodeError(
                    f"The forward pass of {self._label} changes its {place.kind} {place.name!r}"
                    " now, and did not when it was tried, so the ring does not add it up.",
                    cure="Change it in every forward pass of the training, from the first one on.",
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
        if not self._places:
            return
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

    def _tried(self, features: Any) -> list[bool]:
        """Which of the buffers a pass changes; it must change no attribute that is none."""
        before, numbers = self.keep(), _attributes(self._module)
        extra = _extra_state(self._module)
        with unchanged(self._module):
            self._forward(features)
            self._require_same_extra_state(extra)
            changed = [
                place.tensor is not tensor or not _is_same(tensor, value)
                for place, tensor, value in zip(
                    self._places, before.tensors, before.values, strict=True
                )
            ]
            first = _attributes(self._module)
            if first == numbers:
                return changed
            self._forward(features)
            second = _attributes(self._module)
        for name, value in numbers.items():
            way = first.get(name, value) - value
            if way and second.get(name) == value + 2 * way:
                raise UserCodeError(
                    f"The forward pass of {self._label} counts in the attribute {name!r}, which"
                    " is no part of the ring's state: ranks that join, and a training that goes"
                    " on, would count from the beginning.",
                    received=f"{value}, then {value + way} and {value + 2 * way}",
                    cure="Count in a buffer: self.register_buffer('num_passes', torch.zeros((),"
                    " dtype=torch.int64)).",
                )
        return changed

    def _require_same_extra_state(self, before: dict[str, list[Any]]) -> None:
        """Refuse extra state that a pass changes: it has no shape, so it cannot travel."""
        for name, values in _extra_state(self._module).items():
            if not _are_same(values, before[name]):
                raise UserCodeError(
                    f"The forward pass of {self._label} changes what its {name} returns. Extra"
                    " state is no part of the ring's state, nor of the trained model.",
                    cure="Keep what changes in buffers: self.register_buffer('num_passes',"
                    " torch.zeros((), dtype=torch.int64)).",
                )

    def _require_same_for_all_examples(self, features: Any) -> None:
        """Refuse what writes into trained parameters by the examples, of which ranks have some."""
        whole = self._after(features)
        few = repeated(some_examples(features, 0, 1))
        for others in (few, map_leaves(_another, features)):
            for place, one, other in zip(self._places, whole, self._after(others), strict=True):
                if place.tensor.requires_grad and not torch.equal(one, other):
                    raise UserCodeError(
                        f"The forward pass of {self._label} writes into its parameter"
                        f" {place.name!r} by the examples that it is given. Each rank of a ring has"
                        " some of the examples, so the ranks would train different models.",
                        cure="Where the first batch is to initialise it, compute it of the data in"
                        " adapt(self, examples) of the spec, which one process of a job calls, and"
                        " set it in create_model from self.adapted.",
                    )

    def _try_rules(self, features: Any) -> None:
        """Find out by repeated examples what each buffer is of them."""
        before = [_numbers(place.tensor) for place in self._places]
        once, twice, thrice = (self._after(repeated(features, n)) for n in (1, 2, 3))
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
        far = self._ways_from_far(features)
        for place, start, one, way in zip(self._places, before, once, far, strict=True):
            if place.name in self._count_examples and not torch.equal(one - start, way):
                raise self._unusable(place, "points at one of them")

    def _after(self, features: Any) -> list[torch.Tensor]:
        with unchanged(self._module):
            self._forward(features)
            return [_numbers(place.tensor) for place in self._places]

    def _ways_from_far(self, features: Any) -> list[torch.Tensor]:
        """By how much buffers change where those that count examples have counted many."""
        counting = [each for each in self._places if each.name in self._count_examples]
        if not counting:
            return [torch.zeros(()) for _ in self._places]
        with unchanged(self._module):
            for place in counting:
                place.tensor.detach().add_(min(_FAR, torch.iinfo(place.tensor.dtype).max // 2))
            starts = [_numbers(place.tensor) for place in self._places]
            try:
                self._forward(features)
            except Exception as e:
                # What a pointer beyond its bound does is up to the user's code.
                raise self._unusable(counting[0], "points at one of them") from e
            ends = [_numbers(place.tensor) for place in self._places]
        return [end - start for end, start in zip(ends, starts, strict=True)]

    def _unusable(self, place: _Place, what: str) -> UserCodeError:
        return UserCodeError(
            f"The forward pass of {self._label} changes its {place.kind} {place.name!r} by the"
            f" number of examples that it is given: it {what}. Each rank of a ring has some of"
            " the examples, so it would be another one than in one process.",
            cure="Keep means over the examples (in the place of sums), and whole numbers that count"
            " passes or examples without a bound. A queue of examples cannot be kept in a buffer:"
            " compare the examples of a batch with each other.",
        )


@contextlib.contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Take back what trial passes change in a module: tensors, and numbers that are attributes.

    What builds a module, so that lazy layers get their shapes or there are new ones, stays.
    """
    parts, tensors = _parts_of(module), _tensors_of(module)
    kept = [(holder, key, each, each.detach().clone()) for holder, key, each in tensors.values()]
    numbers = [(owner, _numbers_of(owner)) for owner in module.modules()]
    yield
    if parts is None or _parts_of(module) != parts:
        return
    with torch.no_grad():
        for holder, key, tensor, value in kept:
            holder[key] = tensor
            if not _is_same(tensor, value):
                tensor.copy_(value)
    for owner, values in numbers:
        vars(owner).update(values)


def _parts_of(module: nn.Module) -> list[str] | None:
    """The names of all that a module consists of; None where that has no shape yet."""
    named = [*module.named_parameters(), *module.named_buffers()]
    if any(nn.parameter.is_lazy(each) for _, each in named):
        return None
    return [*(name for name, _ in named), *(name for name, _ in module.named_modules())]


def _tensors_of(module: nn.Module) -> dict[int, tuple[dict[str, Any], str, torch.Tensor]]:
    found: dict[int, tuple[dict[str, Any], str, torch.Tensor]] = {}
    for owner in module.modules():
        for holder in (owner._buffers, owner._parameters):
            for key, each in holder.items():
                if each is not None and not nn.parameter.is_lazy(each):
                    found.setdefault(id(each), (holder, key, each))
    return found


def _numbers_of(owner: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if type(value) in (bool, int, float)}


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The numbers that a module and those in it keep as attributes, by name."""
    return {
        f"{prefix}.{key}" if prefix else key: value
        for prefix, owner in module.named_modules()
        for key, value in _numbers_of(owner).items()
    }


def _extra_state(module: nn.Module) -> dict[str, list[Any]]:
    """What `get_extra_state` of a module and of those in it returns, in parts."""

    def copies(state: Any) -> list[Any]:
        return [e.detach().clone() if isinstance(e, torch.Tensor) else e for e in leaves(state)]

    return {
        f"{prefix}.get_extra_state".removeprefix("."): copies(owner.get_extra_state())
        for prefix, owner in module.named_modules()
        if type(owner).get_extra_state is not nn.Module.get_extra_state
    }


def _are_same(ones: list[Any], others: list[Any]) -> bool:
    def is_same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return one.dtype == other.dtype and one.shape == other.shape and _is_same(one, other)
        return type(one) is type(other) and bool(np.all(one == other))

    return len(ones) == len(others) and all(map(is_same, ones, others))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one layout and type have the same bits."""
    if one.layout is not torch.strided:
        one, other = (tensor.detach().to_sparse().coalesce() for tensor in (one, other))
        is_same = _is_same(one.indices(), other.indices())
        return is_same and _is_same(one.values(), other.values())
    return bool(torch.equal(bytes_of(one), bytes_of(other)))


def _another(leaf: Any) -> Any:
    """Other numbers in the place of an example's."""
    is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf * 1.5 + 0.25 if is_number else leaf


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor as float64, a complex number as two."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).clone())
    return tensor.double().clone()
