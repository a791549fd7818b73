"""Frozen dataclasses as JSON objects: written field by field, and checked when they are read.

Fields that a newer version added are skipped. NaN is null, as in all JSON of this package.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

_Class = TypeVar("_Class")
_MAX_COUNT = 1 << 63


class FieldError(ValueError):
    """A field is missing, or is not what its class says."""


class _WrongType(Exception):
    pass


class Format(Generic[_Class]):
    """Writes and reads values of one dataclass; it inspects the fields of the class only once."""

    def __init__(self, cls: type[_Class], *, omits_defaults: bool = False) -> None:
        """Look at the fields of a class.

        Args:
            cls: The dataclass.
            omits_defaults: Whether all fields with their default value are left out. Otherwise
                only fields are left out whose value and default are None.
        """
        types = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # It is a dataclass.
        self._cls = cls
        self._checks = [
            (name, _CHECKS.get(types[name]) or _nested_check(types[name]))
            for name in (field.name for field in fields)
        ]
        self._defaults = {
            field.name: field.default
            for field in fields
            if field.default is not dataclasses.MISSING
        }
        self._omitted = {
            name: default
            for name, default in self._defaults.items()
            if omits_defaults or default is None
        }

    def read(self, fields: Mapping[str, Any]) -> _Class:
        """The value of a JSON object.

        Raises:
            FieldError: A field is missing or has the wrong type.
        """
        # This does the same as the class's `__init__`, which takes three times as long.
        value = object.__new__(self._cls)
        values, defaults = value.__dict__, self._defaults
        try:
            for name, check in self._checks:
                if name in fields:
                    values[name] = check(fields[name])
                elif name in defaults:
                    values[name] = defaults[name]
                else:
                    raise FieldError(f"the field {name!r} is missing")
        except _WrongType:
            raise FieldError(f"the field {name!r} has the wrong type") from None
        return value

    def write(self, value: _Class) -> dict[str, Any]:
        """The JSON object of a value."""
        omitted = self._omitted
        return {
            name: _plain(field_value)
            for name, field_value in vars(value).items()
            if name not in omitted or field_value != omitted[name]
        }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return Format(type(value)).write(value)
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _nested_check(cls: Any) -> Callable[[object], Any]:
    if typing.get_origin(cls) is tuple:
        return _tuple_check(_nested_check(typing.get_args(cls)[0]))
    nested_format = Format(cls)

    def check(value: object) -> Any:
        if isinstance(value, dict):
            return nested_format.read(value)
        raise _WrongType

    return check


def _type_check(cls: type) -> Callable[[object], Any]:
    def check(value: object) -> Any:
        if type(value) is cls:
            return value
        raise _WrongType

    return check


def _tuple_check(check: Callable[[object], Any]) -> Callable[[object], Any]:
    def check_all(value: object) -> Any:
        if isinstance(value, list):
            return tuple(map(check, value))
        raise _WrongType

    return check_all


def _count(value: object) -> int:
    if type(value) is int and -_MAX_COUNT < value < _MAX_COUNT:
        return value
    raise _WrongType


def _number(value: object) -> float:
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _count(value)


def _number_or_null(value: object) -> float | None:
    return None if value is None else _number(value)


def _metrics(value: object) -> dict[str, float]:
    if isinstance(value, dict):
        return {
            name: math.nan if number is None else _number(number) for name, number in value.items()
        }
    raise _WrongType


def _metrics_by_name(value: object) -> dict[str, dict[str, float]]:
    if isinstance(value, dict):
        return {name: _metrics(metrics) for name, metrics in value.items()}
    raise _WrongType


_CHECKS: dict[Any, Callable[[object], Any]] = {
    str: _type_check(str),
    str | None: _type_check(str),
    int: _count,
    int | None: _count,
    float: _number,
    float | None: _number_or_null,
    bool: _type_check(bool),
    tuple[str, ...]: _tuple_check(_type_check(str)),
    tuple[int, ...]: _tuple_check(_count),
    dict[str, float]: _metrics,
    dict[str, float] | None: _metrics,
    dict[str, dict[str, float]]: _metrics_by_name,
    dict[str, dict[str, float]] | None: _metrics_by_name,
}
