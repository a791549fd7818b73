"""Valid JSON: Python's `json` writes `NaN` and `Infinity`, which are not JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """Serialize a value; numbers that JSON cannot represent (NaN and infinities) become null."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_without_bad_numbers(value), allow_nan=False, **options)


def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Read numbers that `dumps` wrote: null becomes NaN."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _without_bad_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_bad_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bad_numbers(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
