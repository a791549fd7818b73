"""JSON that every reader takes: Python's own writes `NaN` and `Infinity`, which are not JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["dumps", "numbers"]


def dumps(value: Any, **options: Any) -> str:
    """A value as JSON; numbers that JSON has not (NaN, infinite ones) become null.

    Args:
        value: Of dicts with text as keys, lists, tuples, text, numbers, booleans and None.
        options: Those of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_without_bad_numbers(value), allow_nan=False, **options)


def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Numbers that were written by `dumps`: null is one that was not finite."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _without_bad_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_bad_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bad_numbers(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
