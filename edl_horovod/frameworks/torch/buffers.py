"""Buffers that the forward pass changes, such as statistics and counters, summed over a ring.

Some modules, such as those of Keras, keep them in parameters that are never trained, and some write
into trained parameters (to bound or normalise them). All of these are called buffers here.

A rank's forward pass changes its own buffers; the step restores them until all sums are reduced.
Then every rank sets them to the mean over the examples. Integers that count passes advance by the
mean over the ranks, and integers that count examples by the sum. A ring cannot keep anything else,
such as a queue of examples with a pointer; trial passes detect such buffers.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import leaves, map_leaves, repeated, slice_examples
from edl_horovod.frameworks.torch.variables import bytes_of

__all__ = ["BufferSnapshot", "TrackedBuffers", "unchanged"]

_NORM_BUFFERS = ("num_batches_tracked", "running_mean", "running_var")
"""Names of the buffers of PyTorch's own norm layers, whose rules are known."""
_LARGE_COUNT = 1 << 20
"""A count that is larger than any queue's length."""


@dataclass(frozen=True)
class _BufferRef:
    """A reference to a buffer in a module."""

    name: str
    owner_dict: dict[str, Any]
    """The `_buffers` or `_parameters` of the module."""
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        tensor = self.owner_dict[self.key]
        assert tensor is not None
        return tensor

    @property
    def kind(self) -> str:
        return "parameter" if isinstance(self.tensor, nn.Parameter) else "buffer"

    @property
    def is_mean(self) -> bool:
        """Whether the ring's value is a mean over the examples; if not, it is a counter."""
        return bool(self.tensor.is_floating_point() or self.tensor.is_complex())

    @property
    def num_sums(self) -> int:
        return int(self.tensor.numel()) * (2 if self.tensor.is_complex() else 1)


@dataclass(frozen=True)
class BufferSnapshot:
    """The state of a module's buffers before a forward pass."""

    tensors: list[torch.Tensor]
    """The buffers that change."""
    values: list[torch.Tensor]
    """Copies of their values."""
    constant: list[tuple[torch.Tensor, int]]
    """The other buffers, each with PyTorch's version counter."""


class TrackedBuffers:
    """The buffers of a module that its forward pass changes in training."""

    def __init__(self, module: nn.Module, forward: Callable[[Any], object], features: Any) -> None:
        """Find the buffers by trial passes, whose changes are undone.

        Args:
            module: A module in training mode.
            forward: Runs the module.
            features: Features of at least two examples.

        Raises:
            UserCodeError: A buffer changes in a way that cannot be summed over a ring.
        """
        self._label = type(module).__name__
        self._module, self._forward = module, forward
        refs: dict[int, _BufferRef] = {}
        for prefix, owner in module.named_modules():
            for holder in (owner._buffers, owner._parameters):
                for key, tensor in holder.items():
                    if tensor is not None:
                        name = f"{prefix}.{key}" if prefix else key
                        refs.setdefault(id(tensor), _BufferRef(name, holder, key))
        self._buffers, self._constant_buffers = list(refs.values()), []
        changes = self._find_changing(features)
        self._constant_buffers = [
            buffer
            for buffer, is_changed in zip(self._buffers, changes, strict=True)
            if not is_changed
        ]
        self._buffers = [
            buffer for buffer, is_changed in zip(self._buffers, changes, strict=True) if is_changed
        ]
        self._count_examples: set[str] = set()
        """Names of the counters of examples; other counters count passes."""
        if any(buffer.key not in _NORM_BUFFERS for buffer in self._buffers):
            self._try_rules(features)
        if any(buffer.tensor.requires_grad for buffer in self._buffers):
            self._require_same_for_all_examples(features)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers that change, by name."""
        return {buffer.name: buffer.tensor for buffer in self._buffers}

    @property
    def num_sums(self) -> int:
        """The number of elements of all these buffers; a complex number is two."""
        return sum(buffer.num_sums for buffer in self._buffers)

    def snapshot(self) -> BufferSnapshot:
        """Save the buffers before a forward pass, for `restore` and `sums`."""
        tensors = [buffer.tensor for buffer in self._buffers]
        constant = [
            (tensor := buffer.owner_dict[buffer.key], tensor._version)
            for buffer in self._constant_buffers
        ]
        return BufferSnapshot(tensors, [tensor.clone() for tensor in tensors], constant)

    def restore(self, snapshot: BufferSnapshot) -> None:
        """Set the module's buffers to the same tensors and values as before the forward pass."""
        if not self._buffers:
            return
        with torch.no_grad():
            for buffer, tensor, value in zip(
                self._buffers, snapshot.tensors, snapshot.values, strict=True
            ):
                buffer.owner_dict[buffer.key] = tensor
                tensor.copy_(value)

    def sums(self, snapshot: BufferSnapshot, num_examples: int) -> list[torch.Tensor]:
        """Return this rank's terms of the ring's sums, one row for each buffer.

        Args:
            snapshot: The snapshot from before the forward pass.
            num_examples: The number of this rank's examples.

        Raises:
            UserCodeError: A buffer changed that did not change in the trial passes.
        """
        for buffer, (tensor, version) in zip(
            self._constant_buffers, snapshot.constant, strict=True
        ):
            if buffer.owner_dict[buffer.key] is not tensor or tensor._version != version:
                raise UserCodeError(
                    f"The forward pass of {self._label} changes its {buffer.kind} {buffer.name!r}"
                    " now, but did not change it in the trial passes at the start, so it is not"
                    " summed over the ring.",
                    hint="Change it in every forward pass of the training, from the first one on.",
                )
        terms = []
        for buffer, before in zip(self._buffers, snapshot.values, strict=True):
            after = _numbers(buffer.tensor.detach())
            if buffer.is_mean:
                terms.append(after.flatten() * num_examples)
            else:
                terms.append((after - _numbers(before)).flatten())
        return terms

    def update(self, totals: torch.Tensor, num_examples: float, num_ranks: float) -> None:
        """Update the buffers by their sums over the ring.

        Args:
            totals: The sums, shape (num_sums,), float64.
            num_examples: The number of examples in the step.
            num_ranks: The number of ranks that had examples.
        """
        if not self._buffers:
            return
        sizes = [buffer.num_sums for buffer in self._buffers]
        with torch.no_grad():
            for buffer, total in zip(self._buffers, torch.split(totals, sizes), strict=True):
                tensor = buffer.tensor
                if buffer.is_mean:
                    mean = (total / num_examples).to(tensor.device)
                    if tensor.is_complex():
                        mean = torch.view_as_complex(mean.reshape(-1, 2))
                    tensor.copy_(mean.reshape(tensor.shape))
                    continue
                if buffer.name not in self._count_examples:
                    total = torch.round(total / num_ranks)
                tensor.copy_(tensor.double() + total.reshape(tensor.shape).to(tensor.device))

    def _find_changing(self, features: Any) -> list[bool]:
        """Return for each buffer whether a pass changes it; refuse counters in plain attributes."""
        before, attributes = self.snapshot(), _attributes(self._module)
        extra_state = _extra_state(self._module)
        with unchanged(self._module):
            self._forward(features)
            self._require_same_extra_state(extra_state)
            changes = [
                buffer.tensor is not tensor or not _is_same(tensor, value)
                for buffer, tensor, value in zip(
                    self._buffers, before.tensors, before.values, strict=True
                )
            ]
            attributes_after_one = _attributes(self._module)
            if attributes_after_one == attributes:
                return changes
            self._forward(features)
            attributes_after_two = _attributes(self._module)
        for name, value in attributes.items():
            increment = attributes_after_one.get(name, value) - value
            if increment and attributes_after_two.get(name) == value + 2 * increment:
                raise UserCodeError(
                    f"The forward pass of {self._label} counts in the attribute {name!r}, which"
                    " is not part of the ring's state: ranks that join, and a resumed training,"
                    " would count from the beginning.",
                    received=f"{value}, then {value + increment} and {value + 2 * increment}",
                    hint="Count in a buffer: self.register_buffer('num_passes', torch.zeros((),"
                    " dtype=torch.int64)).",
                )
        return changes

    def _require_same_extra_state(self, before: dict[str, list[Any]]) -> None:
        """Refuse extra state that a pass changes: its form is unknown, so it cannot be reduced."""
        for name, values in _extra_state(self._module).items():
            if not _are_same(values, before[name]):
                raise UserCodeError(
                    f"The forward pass of {self._label} changes the return value of {name}. Extra"
                    " state is not part of the ring's state or of the trained model.",
                    hint="Keep changing values in buffers: self.register_buffer('num_passes',"
                    " torch.zeros((), dtype=torch.int64)).",
                )

    def _require_same_for_all_examples(self, features: Any) -> None:
        """Refuse passes that write values into trained parameters which depend on the examples."""
        values = self._values_after(features)
        first_example = repeated(slice_examples(features, 0, 1))
        for other_features in (first_example, map_leaves(_altered, features)):
            other_values = self._values_after(other_features)
            for buffer, value, other in zip(self._buffers, values, other_values, strict=True):
                if buffer.tensor.requires_grad and not torch.equal(value, other):
                    raise UserCodeError(
                        f"The forward pass of {self._label} writes into its parameter"
                        f" {buffer.name!r} a value that depends on the examples. Each rank of a"
                        " ring has other examples, so the ranks would train different models.",
                        hint="To initialise a parameter from data, compute its value in"
                        " adapt(self, examples) of the spec, which one process of a job calls,"
                        " and set it in create_model from self.adapted.",
                    )

    def _try_rules(self, features: Any) -> None:
        """Find out by repeated examples how each buffer depends on the number of examples."""
        before = [_numbers(buffer.tensor) for buffer in self._buffers]
        once, twice, thrice = (self._values_after(repeated(features, times)) for times in (1, 2, 3))
        for buffer, start, first, second, third in zip(
            self._buffers, before, once, twice, thrice, strict=True
        ):
            if buffer.key in _NORM_BUFFERS or torch.equal(first, second):
                continue
            is_sum = torch.allclose(third - second, second - first, rtol=1e-4, atol=1e-6)
            if buffer.is_mean:
                if is_sum and not torch.allclose(second, first, rtol=1e-3, atol=1e-5):
                    raise self._unusable(buffer, "it is a sum over the examples")
                if bool(((first == start) & (second != start)).any()):
                    raise self._unusable(buffer, "it has an element for each of the examples")
            elif is_sum and torch.equal(second - start, 2 * (first - start)):
                self._count_examples.add(buffer.name)
            else:
                raise self._unusable(buffer, "it counts neither examples nor passes")
        later = self._increments_after_many(features)
        for buffer, start, first, increment in zip(self._buffers, before, once, later, strict=True):
            if buffer.name in self._count_examples and not torch.equal(first - start, increment):
                raise self._unusable(buffer, "it is a pointer to one of the examples")

    def _values_after(self, features: Any) -> list[torch.Tensor]:
        with unchanged(self._module):
            self._forward(features)
            return [_numbers(buffer.tensor) for buffer in self._buffers]

    def _increments_after_many(self, features: Any) -> list[torch.Tensor]:
        """Return the buffers' increments in a pass when the counters of examples are large.

        A counter increases as before, but a pointer into a queue wraps around.
        """
        counters = [buffer for buffer in self._buffers if buffer.name in self._count_examples]
        if not counters:
            return [torch.zeros(()) for _ in self._buffers]
        with unchanged(self._module):
            for buffer in counters:
                buffer.tensor.detach().add_(
                    min(_LARGE_COUNT, torch.iinfo(buffer.tensor.dtype).max // 2)
                )
            starts = [_numbers(buffer.tensor) for buffer in self._buffers]
            try:
                self._forward(features)
            except Exception as e:
                # The user's code may fail in any way if a pointer is out of range.
                raise self._unusable(counters[0], "it is a pointer to one of the examples") from e
            ends = [_numbers(buffer.tensor) for buffer in self._buffers]
        return [end - start for end, start in zip(ends, starts, strict=True)]

    def _unusable(self, buffer: _BufferRef, reason: str) -> UserCodeError:
        return UserCodeError(
            f"The forward pass of {self._label} changes its {buffer.kind} {buffer.name!r} in a way"
            f" that depends on the number of examples: {reason}. Each rank of a ring has a part of"
            " the examples, so the value would differ from that in one process.",
            hint="Keep means over the examples instead of sums, and integers that count passes or"
            " examples without a limit. A queue of examples cannot be kept in a buffer: compare"
            " the examples within a batch instead.",
        )


@contextlib.contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Undo the changes of trial passes in a module: to tensors, and to numbers in attributes.

    If a pass builds the module, so that lazy layers get shapes or new layers appear, all of its
    changes stay.
    """
    parts, tensors = _parts_of(module), _tensors_of(module)
    saved = [
        (holder, key, tensor, tensor.detach().clone()) for holder, key, tensor in tensors.values()
    ]
    numbers = [(owner, _numbers_of(owner)) for owner in module.modules()]
    yield
    if parts is None or _parts_of(module) != parts:
        return
    with torch.no_grad():
        for holder, key, tensor, value in saved:
            holder[key] = tensor
            if not _is_same(tensor, value):
                tensor.copy_(value)
    for owner, values in numbers:
        vars(owner).update(values)


def _parts_of(module: nn.Module) -> list[str] | None:
    """The names of a module's parameters, buffers and submodules; None if some are lazy."""
    named = [*module.named_parameters(), *module.named_buffers()]
    if any(nn.parameter.is_lazy(tensor) for _, tensor in named):
        return None
    return [*(name for name, _ in named), *(name for name, _ in module.named_modules())]


def _tensors_of(module: nn.Module) -> dict[int, tuple[dict[str, Any], str, torch.Tensor]]:
    tensors: dict[int, tuple[dict[str, Any], str, torch.Tensor]] = {}
    for owner in module.modules():
        for holder in (owner._buffers, owner._parameters):
            for key, tensor in holder.items():
                if tensor is not None and not nn.parameter.is_lazy(tensor):
                    tensors.setdefault(id(tensor), (holder, key, tensor))
    return tensors


def _numbers_of(owner: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if type(value) in (bool, int, float)}


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The numbers in attributes of a module and its submodules, by name."""
    return {
        f"{prefix}.{key}" if prefix else key: value
        for prefix, owner in module.named_modules()
        for key, value in _numbers_of(owner).items()
    }


def _extra_state(module: nn.Module) -> dict[str, list[Any]]:
    """The leaves of what `get_extra_state` returns in a module and its submodules, by name."""

    def copies(state: Any) -> list[Any]:
        return [
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves(state)
        ]

    return {
        f"{prefix}.get_extra_state".removeprefix("."): copies(owner.get_extra_state())
        for prefix, owner in module.named_modules()
        if type(owner).get_extra_state is not nn.Module.get_extra_state
    }


def _are_same(values: list[Any], others: list[Any]) -> bool:
    def is_same(value: Any, other: Any) -> bool:
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            has_same_form = value.dtype == other.dtype and value.shape == other.shape
            return has_same_form and _is_same(value, other)
        return type(value) is type(other) and bool(np.all(value == other))

    return len(values) == len(others) and all(map(is_same, values, others))


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of the same layout and type have the same bits."""
    if tensor.layout is not torch.strided:
        tensor, other = (part.detach().to_sparse().coalesce() for part in (tensor, other))
        is_same = _is_same(tensor.indices(), other.indices())
        return is_same and _is_same(tensor.values(), other.values())
    return bool(torch.equal(bytes_of(tensor), bytes_of(other)))


def _altered(leaf: Any) -> Any:
    """Return different numbers of the same shape, for a trial pass."""
    is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf * 1.5 + 0.25 if is_number else leaf


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to float64; a complex number becomes two numbers."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).clone())
    return tensor.double().clone()
