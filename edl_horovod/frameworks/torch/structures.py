"""Functions on nested features, labels and outputs.

They are tensors in dicts, tuples, lists and dataclasses, and in subclasses of these.
"""

import copy
import functools
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edl_horovod.frameworks.values import Batch

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
    if isinstance(value, list):
        return list(parts.values())
    if isinstance(value, tuple):
        # A named tuple may have its own constructor, so use _make; PyTorch's tuples have no _make.
        make = getattr(type(value), "_make", type(value))
        return make(parts.values())
    is_mapping = isinstance(value, Mapping)
    if type(value) is dict or (is_mapping and not isinstance(value, dict | UserDict)):
        return parts  # Other mappings may require values of one size.
    copied = copy.copy(value)
    # The object's own method also works for frozen dataclasses.
    set_part = copied.__setitem__ if is_mapping else functools.partial(object.__setattr__, copied)
    for key, part in parts.items():
        set_part(key, part)
    return copied


def map_batch(function: Callable[[Any], Any], batch: Batch, count: int | None = None) -> Batch:
    """Return a batch with the function applied to each tensor.

    Args:
        function: Takes and returns a tensor, or what stands for one.
        batch: The batch, which is not changed.
        count: The number of examples of the new batch; None if it stays the same.
    """
    parts = (batch.features, batch.labels, batch.weights)
    features, labels, weights = (map_leaves(function, part) for part in parts)
    return Batch(features, labels, batch.num_examples if count is None else count, weights)


def slice_batch(batch: Batch, first: int, last: int) -> Batch:
    """Return the examples `first` to `last`, exclusive, of a batch."""
    if last - first == batch.num_examples:
        return batch
    return map_batch(lambda tensor: tensor[first:last], batch, last - first)


def take_examples(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    """Return the examples of a batch that have these indices."""
    indices = torch.from_numpy(rows)
    return map_batch(lambda tensor: tensor[indices], batch, len(rows))


def repeated(value: Any, times: int = 2) -> Any:
    """Repeat all examples together several times; scalars and other leaves do not change."""

    def repeat_leaf(leaf: Any) -> Any:
        has_examples = isinstance(leaf, torch.Tensor) and leaf.ndim > 0
        return torch.cat([leaf] * times) if has_examples else leaf

    return map_leaves(repeat_leaf, value)


def repeated_batch(batch: Batch, times: int = 2) -> Batch:
    """Repeat the examples of a batch several times."""
    return map_batch(lambda part: repeated(part, times), batch, times * batch.num_examples)


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
