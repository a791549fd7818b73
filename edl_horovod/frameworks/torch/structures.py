"""Features, labels and outputs as users nest them: tensors in dicts, tuples and lists."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from edl_horovod.frameworks.values import Batch

__all__ = [
    "at_least_float32",
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
    """What a structure holds, in its order."""
    if isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure, with what a function makes of each leaf."""
    if isinstance(value, Mapping):
        return {key: map_leaves(function, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [map_leaves(function, part) for part in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value)


def num_examples(value: Any) -> int:
    """How many examples a batch's features or labels hold: the first size of the first tensor."""
    return int(next(leaves(value)).shape[0])


def some_examples(value: Any, first: int, last: int) -> Any:
    """Those of a batch's examples from one up to another, which is left out."""
    return map_leaves(lambda tensor: tensor[first:last], value)


def part_of(batch: Batch, first: int, last: int) -> Batch:
    """A batch's examples from one up to another, which is left out."""
    if last - first == batch.num_examples:
        return batch
    features, labels = (some_examples(each, first, last) for each in (batch.features, batch.labels))
    weights = None if batch.weights is None else some_examples(batch.weights, first, last)
    return Batch(features, labels, last - first, weights)


def repeated(value: Any, times: int = 2) -> Any:
    """The same examples several times, one after the other; what is no row of examples stays."""

    def again(leaf: Any) -> Any:
        is_row = isinstance(leaf, torch.Tensor) and leaf.ndim > 0
        return torch.cat([leaf] * times) if is_row else leaf

    return map_leaves(again, value)


def repeated_batch(batch: Batch, times: int = 2) -> Batch:
    """The examples of a batch, each there several times."""
    features, labels = (repeated(each, times) for each in (batch.features, batch.labels))
    weights = None if batch.weights is None else repeated(batch.weights, times)
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
