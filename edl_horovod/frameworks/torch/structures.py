"""Features, labels and outputs as users nest them.

They are tensors in dicts, tuples, lists and dataclasses, and in classes that extend these.
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
    "described",
    "detached",
    "leaves",
    "map_leaves",
    "num_examples",
    "part_of",
    "repeated",
    "repeated_batch",
    "some_examples",
]

_SHORT = (torch.float16, torch.bfloat16)


def leaves(value: Any) -> Iterator[Any]:
    """What a structure holds, in its order; None holds nothing."""
    if value is None:
        return
    parts = _parts_of(value)
    if parts is None:
        yield value
    else:
        for part in parts.values():
            yield from leaves(part)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure, of the same classes, with what a function makes of each leaf."""
    if value is None:
        return None
    parts = _parts_of(value)
    if parts is None:
        return function(value)
    return _with_parts(value, {key: map_leaves(function, part) for key, part in parts.items()})


def _parts_of(value: Any) -> dict[Any, Any] | None:
    """The parts of a structure by their keys, names or places; None of a leaf."""
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
    """A structure of the class of another one, and with its other attributes."""
    if isinstance(value, Mapping):
        if type(value) is dict or not isinstance(value, dict | UserDict):
            return parts  # Other mappings may have values of one size alone.
        made = copy.copy(value)
        for key, part in parts.items():
            made[key] = part
        return made
    if isinstance(value, list):
        return list(parts.values())
    if isinstance(value, tuple):
        # A named tuple may have a constructor of its own; the tuples of PyTorch have none.
        make = getattr(type(value), "_make", type(value))
        return make(parts.values())
    made = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(made, name, part)  # Also where it is frozen.
    return made


def num_examples(value: Any) -> int:
    """How many examples a batch's features or labels hold: the first size of the first tensor."""
    return int(next(leaves(value)).shape[0])


def batch_of(features: Any, labels: Any = None, weights: Any = None) -> Batch:
    """A batch of these examples."""
    return Batch(features, labels, num_examples(features), weights)


def some_examples(value: Any, first: int, last: int) -> Any:
    """Those of a batch's examples from one up to another, which is left out."""
    return map_leaves(lambda tensor: tensor[first:last], value)


def part_of(batch: Batch, first: int, last: int) -> Batch:
    """A batch's examples from one up to another, which is left out."""
    if last - first == batch.num_examples:
        return batch
    features, labels, weights = (
        some_examples(each, first, last) for each in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, last - first, weights)


def repeated(value: Any, times: int = 2) -> Any:
    """The same examples several times, one after the other; what is no row of examples stays."""

    def again(leaf: Any) -> Any:
        is_row = isinstance(leaf, torch.Tensor) and leaf.ndim > 0
        return torch.cat([leaf] * times) if is_row else leaf

    return map_leaves(again, value)


def repeated_batch(batch: Batch, times: int = 2) -> Batch:
    """The examples of a batch, each there several times."""
    features, labels, weights = (
        repeated(each, times) for each in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, times * batch.num_examples, weights)


def at_least_float32(outputs: Any) -> Any:
    """A model's outputs, in float32 where it computes in less."""

    def cast(value: Any) -> Any:
        is_short = isinstance(value, torch.Tensor) and value.dtype in _SHORT
        return value.float() if is_short else value

    return map_leaves(cast, outputs)


def detached(leaf: Any) -> Any:
    """A tensor without what would make its gradient; anything else as it is."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def described(value: Any) -> Any:
    """Types and shapes of a structure, for messages."""

    def one(leaf: Any) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        return type(leaf).__name__

    return map_leaves(one, value)
