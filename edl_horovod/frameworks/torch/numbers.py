"""Flattens the numbers in nested settings to one row, which is part of the ring's state.

An optimizer's groups and a scheduler's state contain numbers, texts and functions. All ranks create
the same structure from the same code, so only the numbers can differ.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["with_type_of", "numbers_in", "with_numbers"]


def numbers_in(value: Any) -> Iterator[float]:
    """Yield the numbers of a structure, in order; texts, functions and None are skipped."""
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


def with_type_of(value: bool | int | float, number: float) -> bool | int | float:
    """Convert a number to the type of `value`, unless that changes it.

    The learning rate of `SGD(lr=1)` is an int first, and its schedule may set it to 0.5.
    """
    converted = type(value)(number) if math.isfinite(number) else number
    return converted if converted == number else number


def with_numbers(value: Any, numbers: Iterator[float]) -> Any:
    """Return a copy of a structure with other numbers; its tensors are changed in place.

    Args:
        value: A structure that `numbers_in` accepts.
        numbers: The new numbers, in the order of `numbers_in`.
    """
    if isinstance(value, bool | int | float):
        return with_type_of(value, next(numbers))
    if isinstance(value, torch.Tensor):
        row = torch.tensor([next(numbers) for _ in range(value.numel())], dtype=torch.float64)
        value.copy_(row.reshape(value.shape))
        return value
    if isinstance(value, Mapping):
        # A Counter must stay a Counter: schedulers read missing keys from it.
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
