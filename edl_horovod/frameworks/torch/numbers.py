"""Plain numbers inside of settings that nest them, as one row that travels with the ring's state.

An optimizer's groups and a scheduler's state hold numbers among texts and functions. All ranks make
the same ones from the same code, so the numbers alone say where they differ.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["like", "numbers_in", "with_numbers"]


def numbers_in(value: Any) -> Iterator[float]:
    """The numbers of a structure, in its order; texts, functions and None are passed over."""
    if isinstance(value, bool | int | float):
        yield float(value)
    elif isinstance(value, torch.Tensor):
        yield from value.double().flatten().tolist()
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from numbers_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers_in(part)


def like(value: bool | int | float, number: float) -> bool | int | float:
    """A number of the type of another one, unless that type cannot hold it.

    `SGD(lr=1)` begins with a whole number, and its schedule makes 0.5 of it.
    """
    same = type(value)(number) if math.isfinite(number) else number
    return same if same == number else number


def with_numbers(value: Any, numbers: Iterator[float]) -> Any:
    """The same structure with other numbers; tensors in it are changed in place.

    Args:
        value: As `numbers_in` was given it.
        numbers: As many as it has, in the same order.
    """
    if isinstance(value, bool | int | float):
        return like(value, next(numbers))
    if isinstance(value, torch.Tensor):
        found = torch.tensor([next(numbers) for _ in range(value.numel())], dtype=torch.float64)
        value.copy_(found.reshape(value.shape))
        return value
    if isinstance(value, Mapping):
        # A Counter stays one: schedulers look numbers up in it that are not there.
        changed = copy.copy(value)
        for key in value:
            changed[key] = with_numbers(value[key], numbers)  # type: ignore[index]  # A dict or its like.
        return changed
    if isinstance(value, list | tuple):
        parts = [with_numbers(part, numbers) for part in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
