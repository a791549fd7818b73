"""Functions on nested features, labels and outputs.

They are tensors in dicts, tuples, lists and dataclasses, and in subclasses of these.
"""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from edl_horovod.frameworks.values import Batch

__all__ = [
    "at_least_float32",
    "batch_of",
    "describe",
    "detach",
    "leaves",
    "map_leaves",
    "num_examples",
    "slice_batch",
    "repeated",
    "repeated_batch",
    "slice_examples",
]

_SHORT = (torch.float16, torch.bfloat16)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of a structure in order; None has no leaves."""
    if value is None:
        return
    parts = _parts_of(value)
    if parts is None:
        yield value
    else:
        for part in parts.values():
            yield from leaves(part)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a structure of the same classes, with the function applied to each leaf."""
    if value is None:
        return None
    parts = _parts_of(value)
    if parts is None:
        return function(value)
    return _with_parts(value, {key: map_leaves(function, part) for key, part in parts.items()})


def _parts_of(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a structure by their keys, names or indices; None for a leaf."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _with_parts(value: Any, parts: dict[Any, Any]) -> Any:
    """Copy a structure, with other parts; class and other attributes stay the same."""
    if isinstance(value, Mapping):
        if type(value) is dict or not isinstance(value, dict | UserDict):
            return parts  # Other mappings may require values of one size.
        copied = copy.copy(value)
        for key, part in parts.items():
            copied[key] = part
        return copied
    if isinstance(value, list):
        return list(parts.values())
    if isinstance(value, tuple):
        # A named tuple may have its own constructor, so use _make; PyTorch's tuples have no _make.
        make = getattr(type(value), "_make", type(value))
        return make(parts.values())
    copied = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(copied, name, part)  # This also works for frozen dataclasses.
    return copied


def num_examples(value: Any) -> int:
    """Return the number of examples: the first size of the first tensor in features or labels."""
    return int(next(leaves(value)).shape[0])


def batch_of(features: Any, labels: Any = None, weights: Any = None) -> Batch:
    """Create a batch of these examples."""
    return Batch(features, labels, num_examples(features), weights)


def slice_examples(value: Any, first: int, last: int) -> Any:
    """Return the examples `first` to `last`, exclusive, of features, labels or outputs."""
    return map_leaves(lambda tensor: tensor[first:last], value)


def slice_batch(batch: Batch, first: int, last: int) -> Batch:
    """Return the examples `first` to `last`, exclusive, of a batch."""
    if last - first == batch.num_examples:
        return batch
    features, labels, weights = (
        slice_examples(part, first, last) for part in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, last - first, weights)


def repeated(value: Any, times: int = 2) -> Any:
    """Repeat all examples together several times; scalars and other leaves do not change."""

    def repeat_leaf(leaf: Any) -> Any:
        has_examples = isinstance(leaf, torch.Tensor) and leaf.ndim > 0
        return torch.cat([leaf] * times) if has_examples else leaf

    return map_leaves(repeat_leaf, value)


def repeated_batch(batch: Batch, times: int = 2) -> Batch:
    """Repeat the examples of a batch several times."""
    features, labels, weights = (
        repeated(part, times) for part in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, times * batch.num_examples, weights)


def at_least_float32(outputs: Any) -> Any:
    """Convert 16-bit outputs of a model to float32."""

    def cast(value: Any) -> Any:
        is_short = isinstance(value, torch.Tensor) and value.dtype in _SHORT
        return value.float() if is_short else value

    return map_leaves(cast, outputs)


def detach(leaf: Any) -> Any:
    """Detach a tensor from the autograd graph; anything else is returned as it is."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def describe(value: Any) -> Any:
    """Return the types and shapes of a structure, for messages."""

    def describe_leaf(leaf: Any) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        return type(leaf).__name__

    return map_leaves(describe_leaf, value)
