"""Buffers that the forward pass changes, such as statistics and counters, summed over a ring.

Some modules, such as those of Keras, keep them in parameters that are never trained, and some write
into trained parameters (to bound or normalise them). All of these are called buffers here.

A rank's forward pass changes its own buffers; the step restores them until all sums are reduced.
Then every rank sets them to the mean over the examples. A rank alone keeps them. Integers that
count passes advance by the mean over the ranks, and integers that count examples by the sum. A ring
cannot keep anything else, such as a queue of examples with a pointer; trial passes detect such
buffers.
"""

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import (
    describe,
    leaves,
    map_batch,
    repeated_batch,
    slice_batch,
)
from edl_horovod.frameworks.torch.variables import bytes_of
from edl_horovod.frameworks.values import Batch

_NORM_BUFFERS = ("num_batches_tracked", "running_mean", "running_var")
"""Names of the buffers of PyTorch's own norm layers, whose rules are known."""
_LARGE_COUNT = 1 << 20
"""A count that is larger than any queue's length."""
_IS_POINTER = "it is a pointer to one of the examples"


@dataclass(frozen=True)
class _BufferRef:
    """A reference to a buffer in a module."""

    name: str
    owner_dict: dict[str, Any]
    """The `_buffers` or `_parameters` of the module."""
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        return self.owner_dict[self.key]

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

    changing: list[tuple[torch.Tensor, torch.Tensor]]
    """The buffers that change, each with a copy of its value."""
    constant: list[tuple[torch.Tensor, int]]
    """The other buffers, each with PyTorch's version counter."""


class TrackedBuffers:
    """The buffers of a module that its forward pass changes in training."""

    def __init__(self, module: nn.Module, forward: Callable[[Batch], object], batch: Batch) -> None:
        """Find the buffers by trial passes, whose changes are undone.

        Args:
            module: A module in training mode.
            forward: Runs the module.
            batch: At least two examples.

        Raises:
            UserCodeError: A buffer changes in a way that cannot be summed over a ring.
        """
        self._label = type(module).__name__
        self._module, self._forward = module, forward
        self._buffers, self._constants = _refs_of(module), []
        changes = list(zip(self._buffers, self._find_changing(batch), strict=True))
        self._constants = [buffer for buffer, is_changed in changes if not is_changed]
        self._buffers = [buffer for buffer, is_changed in changes if is_changed]
        self._count_examples: set[str] = set()
        """Names of the counters of examples; other counters count passes."""
        if any(buffer.key not in _NORM_BUFFERS for buffer in self._buffers):
            self._try_rules(batch)
        if any(buffer.tensor.requires_grad for buffer in self._buffers):
            self._require_same_for_all_examples(batch)

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
        changing = [(tensor := buffer.tensor, tensor.clone()) for buffer in self._buffers]
        constant = [(tensor := ref.tensor, tensor._version) for ref in self._constants]
        return BufferSnapshot(changing, constant)

    def restore(self, snapshot: BufferSnapshot) -> None:
        """Set the module's buffers to the same tensors and values as before the forward pass."""
        with torch.no_grad():
            for buffer, (tensor, value) in zip(self._buffers, snapshot.changing, strict=True):
                buffer.owner_dict[buffer.key] = tensor
                tensor.copy_(value)

    def keep(self, snapshot: BufferSnapshot) -> None:
        """Set the module's buffers to the same tensors as before, with their present values."""
        with torch.no_grad():
            for buffer, (tensor, _) in zip(self._buffers, snapshot.changing, strict=True):
                if buffer.tensor is not tensor:
                    tensor.copy_(buffer.tensor)
                    buffer.owner_dict[buffer.key] = tensor

    def require_others_unchanged(self, snapshot: BufferSnapshot) -> None:
        """Refuse a buffer that changed and did not change in the trial passes."""
        for buffer, (tensor, version) in zip(self._constants, snapshot.constant, strict=True):
            if buffer.owner_dict[buffer.key] is not tensor or tensor._version != version:
                raise UserCodeError(
                    f"The forward pass of {self._label} changes its {buffer.kind} {buffer.name!r}"
                    " now, but did not change it in the trial passes at the start, so it is not"
                    " summed over the ring.",
                    hint="Change it in every forward pass of the training, from the first one on.",
                )

    def sums(self, snapshot: BufferSnapshot, num_examples: int) -> NDArray[np.float64]:
        """Return this rank's terms of the ring's sums, shape (num_sums,).

        Args:
            snapshot: The snapshot from before the forward pass.
            num_examples: The number of this rank's examples.
        """
        if not self._buffers:
            return np.zeros(0)
        terms = []
        for buffer, (_, before) in zip(self._buffers, snapshot.changing, strict=True):
            after = _numbers(buffer.tensor)
            term = after * num_examples if buffer.is_mean else after - _numbers(before)
            terms.append(term.flatten())
        # From a GPU in one transfer.
        rows: NDArray[np.float64] = torch.cat(terms).cpu().numpy()
        return rows

    def update(self, totals: torch.Tensor, num_examples: float, num_ranks: float) -> None:
        """Update the buffers by their sums over the ring.

        Args:
            totals: The sums, shape (num_sums,), float64.
            num_examples: The number of examples in the step.
            num_ranks: The number of ranks that had examples.
        """
        sizes = [buffer.num_sums for buffer in self._buffers]
        if self._buffers:
            totals = totals.to(self._buffers[0].tensor.device)
        with torch.no_grad():
            for buffer, total in zip(self._buffers, torch.split(totals, sizes), strict=True):
                tensor = buffer.tensor
                if buffer.is_mean:
                    total = total / num_examples
                elif buffer.name not in self._count_examples:
                    total = torch.round(total / num_ranks)
                if tensor.is_complex():
                    total = torch.view_as_complex(total.reshape(-1, 2))
                total = total.reshape(tensor.shape)
                tensor.copy_(total if buffer.is_mean else tensor.double() + total)

    def _find_changing(self, batch: Batch) -> list[bool]:
        """Return for each buffer whether a pass changes it; refuse state in plain attributes."""
        before, attributes = self.snapshot(), _attributes(self._module)
        versions = [tensor._version for tensor, _ in before.changing]
        extra_state = _extra_state(self._module)
        with unchanged(self._module):
            random_state = _random_state()
            self._forward(batch)
            self._require_same_extra_state(extra_state)
            # A pass may write what a tensor already is at the start, and something else later.
            changes = [
                buffer.tensor is not tensor
                or tensor._version != version
                or not _is_same(tensor, value)
                for buffer, (tensor, value), version in zip(
                    self._buffers, before.changing, versions, strict=True
                )
            ]
            after_one = _attributes(self._module)
            if not _differing(attributes, after_one):
                return changes
            # The same pass a second time changes only what depends on the pass before.
            with torch.no_grad():
                for buffer, (tensor, value) in itertools.compress(
                    zip(self._buffers, before.changing, strict=True), changes
                ):
                    buffer.owner_dict[buffer.key] = tensor
                    tensor.copy_(value)
            _set_random_state(random_state)
            self._forward(batch)
            after_two = _attributes(self._module)
        for name in _differing(after_one, after_two):
            values = (attributes.get(name), after_one.get(name), after_two[name])
            first, second, third = map(describe, values) if _is_tensor(values[2]) else values
            raise UserCodeError(
                f"The forward pass of {self._label} changes the attribute {name!r} by what it was"
                " before. It is not part of the ring's state: ranks that join, and a resumed"
                " training, would begin with its first value.",
                received=f"{first}, then {second} and {third}",
                hint="Keep it in a buffer that each pass changes:"
                f" self.register_buffer({name.rpartition('.')[2]!r}, torch.zeros(())), with"
                " dtype=torch.int64 for a count.",
            )
        return changes

    def _require_same_extra_state(self, before: dict[str, list[Any]]) -> None:
        """Refuse extra state that a pass changes: its form is unknown, so it cannot be reduced."""
        for name, values in _extra_state(self._module).items():
            if len(values) != len(before[name]) or not all(map(_is_same, values, before[name])):
                raise UserCodeError(
                    f"The forward pass of {self._label} changes the return value of {name}. Extra"
                    " state is not part of the ring's state or of the trained model.",
                    hint="Keep changing values in buffers: self.register_buffer('num_passes',"
                    " torch.zeros((), dtype=torch.int64)).",
                )

    def _require_same_for_all_examples(self, batch: Batch) -> None:
        """Refuse passes that write values into trained parameters which depend on the examples."""
        values = self._values_after(batch)
        first_example = repeated_batch(slice_batch(batch, 0, 1))
        for other_batch in (first_example, map_batch(_altered, batch)):
            other_values = self._values_after(other_batch)
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

    def _try_rules(self, batch: Batch) -> None:
        """Find out by repeated examples how each buffer depends on the number of examples."""
        before = [_numbers(buffer.tensor) for buffer in self._buffers]
        after = (self._values_after(repeated_batch(batch, times)) for times in (1, 2, 3))
        increments = {}
        for buffer, start, once, twice, thrice in zip(self._buffers, before, *after, strict=True):
            if buffer.key in _NORM_BUFFERS or torch.equal(once, twice):
                continue
            is_sum = torch.allclose(thrice - twice, twice - once, rtol=1e-4, atol=1e-6)
            if buffer.is_mean:
                if is_sum and not torch.allclose(twice, once, rtol=1e-3, atol=1e-5):
                    raise self._unusable(buffer, "it is a sum over the examples")
                if bool(((once == start) & (twice != start)).any()):
                    raise self._unusable(buffer, "it has an element for each of the examples")
            elif is_sum and torch.equal(twice - start, 2 * (once - start)):
                increments[buffer.name] = once - start
            else:
                raise self._unusable(buffer, "it counts neither examples nor passes")
        self._count_examples = set(increments)
        self._refuse_pointers(batch, increments)

    def _values_after(self, batch: Batch) -> list[torch.Tensor]:
        with unchanged(self._module):
            self._forward(batch)
            return [_numbers(buffer.tensor) for buffer in self._buffers]

    def _refuse_pointers(self, batch: Batch, increments: Mapping[str, torch.Tensor]) -> None:
        """Refuse counters of examples that wrap around, such as a pointer into a queue.

        Args:
            batch: Examples for a pass.
            increments: By how much each counter of examples advances in such a pass, by name.
        """
        counters = [buffer for buffer in self._buffers if buffer.name in increments]
        if not counters:
            return
        with unchanged(self._module):
            for buffer in counters:
                largest = torch.iinfo(buffer.tensor.dtype).max
                buffer.tensor.detach().add_(min(_LARGE_COUNT, largest // 2))
            before = [_numbers(buffer.tensor) for buffer in counters]
            try:
                self._forward(batch)
            except Exception as e:
                # The user's code may fail in any way if a pointer is out of range.
                raise self._unusable(counters[0], _IS_POINTER) from e
            for buffer, start in zip(counters, before, strict=True):
                if not torch.equal(_numbers(buffer.tensor) - start, increments[buffer.name]):
                    raise self._unusable(buffer, _IS_POINTER)

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
    parts = _parts_of(module)
    refs = [ref for ref in _refs_of(module) if not is_lazy(ref.tensor)]
    saved = [(ref, tensor := ref.tensor, tensor.detach().clone()) for ref in refs]
    numbers = [(owner, _numbers_of(owner)) for owner in module.modules()]
    yield
    if parts is None or _parts_of(module) != parts:
        return
    with torch.no_grad():
        for ref, tensor, value in saved:
            ref.owner_dict[ref.key] = tensor
            if not _is_same(tensor, value):
                tensor.copy_(value)
    for owner, values in numbers:
        vars(owner).update(values)


def _parts_of(module: nn.Module) -> list[str] | None:
    """The names of a module's parameters, buffers and submodules; None if some are lazy."""
    named = [*module.named_parameters(), *module.named_buffers()]
    if any(is_lazy(tensor) for _, tensor in named):
        return None
    return [*(name for name, _ in named), *(name for name, _ in module.named_modules())]


def _refs_of(module: nn.Module) -> list[_BufferRef]:
    """References to a module's parameters and buffers; a tied tensor once."""
    refs: dict[int, _BufferRef] = {}
    for prefix, owner in module.named_modules():
        for holder in (owner._buffers, owner._parameters):
            for key, tensor in holder.items():
                if tensor is not None:
                    name = f"{prefix}.{key}".removeprefix(".")
                    refs.setdefault(id(tensor), _BufferRef(name, holder, key))
    return list(refs.values())


def _numbers_of(owner: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if type(value) in (bool, int, float)}


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of the numbers and tensors in attributes of a module and its submodules, by name.

    Those of torchmetrics are left out: they are sums for reports, which no training depends on.
    """
    return {
        f"{prefix}.{key}".removeprefix("."): value.detach().clone() if _is_tensor(value) else value
        for prefix, owner in module.named_modules()
        if not any(kind.__module__.startswith("torchmetrics.") for kind in type(owner).__mro__)
        for key, value in vars(owner).items()
        if type(value) in (bool, int, float) or _is_tensor(value)
    }


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of the attributes that are new or have changed by more than rounding."""
    return [
        name
        for name, value in after.items()
        if name not in before or not _is_close(value, before[name])
    ]


def _is_close(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, float):
        return math.isclose(value, other, rel_tol=1e-6) or (value != value and other != other)
    if not _is_tensor(value):
        return bool(value == other)
    if value.is_nested or other.is_nested:
        return True  # A ragged tensor of a batch cannot be compared, nor kept from one to the next.
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    if value.layout is not torch.strided:
        return _is_same(value, other)
    numbers = (_numbers(value), _numbers(other))
    return bool(torch.allclose(*numbers, rtol=1e-4, atol=1e-6, equal_nan=True))


def _random_state() -> tuple[Any, ...]:
    """The states of the generators that a pass may draw from."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpus


def _set_random_state(state: tuple[Any, ...]) -> None:
    of_python, of_numpy, of_torch, on_gpus = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_gpus is not None:
        torch.cuda.set_rng_state_all(on_gpus)


def _extra_state(module: nn.Module) -> dict[str, list[Any]]:
    """The leaves of what `get_extra_state` returns in a module and its submodules, by name."""
    return {
        f"{prefix}.get_extra_state".removeprefix("."): [
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves(owner.get_extra_state())
        ]
        for prefix, owner in module.named_modules()
        if type(owner).get_extra_state is not nn.Module.get_extra_state
    }


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values have the same type; tensors also the same shape and bits."""
    if not isinstance(value, torch.Tensor):
        return type(value) is type(other) and bool(np.all(value == other))
    if not isinstance(other, torch.Tensor):
        return False
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    if value.layout is not torch.strided:
        value, other = (part.detach().to_sparse().coalesce() for part in (value, other))
        is_same = _is_same(value.indices(), other.indices())
        return is_same and _is_same(value.values(), other.values())
    return bool(torch.equal(bytes_of(value), bytes_of(other)))


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
