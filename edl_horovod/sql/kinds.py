"""What the values of a column are, found in the values themselves over the whole scan.

A type that is declared is weak evidence (sqlite keeps any value in any column), so it decides only
where values have two meanings: sqlite has no dates, only texts in columns declared as such.
"""

import array
import datetime
import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.rows import SelectColumn

__all__ = ["Kind", "ScannedColumn"]

Kind = Literal["integer", "number", "text", "date", "timestamp", "bytes", "boolean"]

_KINDS: dict[type, Kind] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    Decimal: "number",
    str: "text",
    bytes: "bytes",
    bytearray: "bytes",
    memoryview: "bytes",
    datetime.date: "date",
    datetime.datetime: "timestamp",
}
_TYPES: dict[Kind, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    # A timestamp without a zone counts as UTC.
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DATE_FORMS: dict[str, tuple[pa.DataType, ...]] = {
    "date": (pa.date32(),),
    "without a zone": (pa.timestamp("us"), _TYPES["timestamp"]),
    "with a zone": (_TYPES["timestamp"],),
}
"""How texts write dates, and what they are cast to."""
_LARGEST_EXACT = 1 << 24
"""Whole numbers up to this one are exact in 32-bit floating point, which models compute with."""
_LARGEST_WHOLE = 1 << 53
_SHOWN_CHARACTERS = 40
_UNUSABLE = (pa.ArrowInvalid, OverflowError, UnicodeEncodeError)
_NULL = type(None)
_IS_NULL = {_NULL}


class ScannedColumn:
    """What was seen of a column so far, batch after batch."""

    def __init__(
        self,
        column: SelectColumn,
        *,
        default: object = None,
        kind_of_texts: Kind | None = None,
        may_be_dates: bool = False,
    ) -> None:
        """Begin.

        Args:
            column: As the engine describes it.
            default: What a NULL counts as.
            kind_of_texts: `date` or `timestamp` where its texts are that, whatever is declared.
            may_be_dates: Whether it becomes one of dates if all of its texts are dates.
        """
        self.name = column.name
        self.declared_type = column.declared_type
        self.kind: Kind | None = None
        self.num_nulls = 0
        self.first_null_row: int | None = None
        self.num_inexact = 0
        """Values that 32-bit floating point cannot hold, should the column be of numbers."""
        self.first_inexact: tuple[int, float] | None = None
        self._default = default
        self._first: tuple[int, object] | None = None
        self._types: set[type] = set()
        """Of the last values; the kind is that of these, or a wider one."""
        words = column.declared_type.upper()
        self._declared: Kind | None = None
        """Of a column whose texts are dates or timestamps."""
        if words.startswith(("TIMESTAMP", "DATETIME")):
            self._declared = "timestamp"
        elif words.startswith("DATE"):
            self._declared = "date"
        self._declared = kind_of_texts or self._declared
        self._forms = [*_DATE_FORMS] if may_be_dates and not self._declared else []
        """What all texts so far may be."""
        if default is not None:
            self._narrow(pa.array([str(default)]))

    def read(self, values: Sequence[Any], *, first_row: int) -> pa.Array:
        """The values of some rows, NULL where there is none.

        Args:
            values: Of consecutive rows.
            first_row: The number of the first, from 0.

        Raises:
            DataError: They are of another kind than those before, or cannot be used.
        """
        quickly = self._read_quickly(values)
        if quickly is not None:
            return quickly
        types = set(map(type, values))
        if types != self._types:
            if types == _IS_NULL:
                return pa.nulls(len(values), _TYPES[self.kind] if self.kind else pa.null())
            if self._first is None:
                self._first = next(
                    (first_row + place, value)
                    for place, value in enumerate(values)
                    if value is not None
                )
            for type_ in types - _IS_NULL:
                self._widen(type_, values, first_row)
            self._types = types
        assert self.kind is not None
        if Decimal in types or (self.kind == "number" and int in types):
            values = [None if value is None else float(value) for value in values]
        try:
            return self._array(values, self.kind, types)
        except _UNUSABLE:
            raise self._unusable(values, first_row) from None

    def _read_quickly(self, values: Sequence[Any]) -> pa.Array | None:
        """The values if all are of the one type that the last ones had; None if that is not sure.

        What copies the values out of their objects refuses other types by itself, which is cheaper
        than to ask each for its type. No driver gives booleans among integers.
        """
        try:
            if self._types == {int} and self.kind == "integer":
                return _from_memory(array.array("q", values), pa.int64())
            if self._types == {str} and self.kind == "text":
                "".join(values)
                return pa.array(values, pa.string())
            if self._types == {float} and self.kind == "number":
                numbers = array.array("d", values)
                # Whole numbers are copied, too, and those beyond would lose digits.
                if np.abs(np.frombuffer(numbers)).max() < _LARGEST_WHOLE:
                    return _from_memory(numbers, pa.float64())
        except (TypeError, *_UNUSABLE):
            return None
        return None

    def joined(self, parts: Sequence[pa.Array], *, first_row: int) -> pa.Array:
        """What `read` gave for consecutive rows as one array, and a look at its values.

        Raises:
            DataError: A number is not finite.
        """
        if self.kind is not None:
            type_ = _TYPES[self.kind]
            parts = [part if part.type == type_ else part.cast(type_, safe=False) for part in parts]
        values = pa.concat_arrays(parts)
        if values.null_count:
            if self.first_null_row is None:
                self.first_null_row = first_row + pc.index(values.is_null(), True).as_py()
            self.num_nulls += values.null_count
        if self.kind in ("integer", "number"):
            self._look_at_numbers(values, first_row)
        if self.kind == "text":
            self._narrow(values)
        return values

    def find_dates(self) -> Sequence[pa.DataType]:
        """Make it a column of dates if all of its texts are dates, after the last row.

        Returns:
            What the texts are cast to, one after the other; empty for other columns.
        """
        if self.kind != "text" or not self._forms:
            return ()
        types = _DATE_FORMS[self._forms[0]]
        self.kind = "date" if types == (pa.date32(),) else "timestamp"
        return types

    def _narrow(self, texts: pa.Array) -> None:
        self._forms = [form for form in self._forms if _has_form(texts, form)]

    def filled(self, values: pa.Array) -> pa.Array:
        """The values with the default for those that are NULL; as they are if all are there.

        Raises:
            ConfigError: The default is of another kind than the column.
        """
        if not values.null_count or self._default is None:
            return values
        kind, default = self._kind_of_default()
        if self.kind is None:
            self.kind, self._first = kind, (self.first_null_row or 0, default)
        elif {self.kind, kind} == {"integer", "number"}:
            self.kind = "number"
        elif self.kind != kind:
            raise ConfigError(
                f"The default of the column {self.name!r} is of another kind than its values: those"
                f" are of the kind {self.kind}.",
                received={f"default of {self.name}": self._default},
                hint="Give a default of that kind.",
            )
        type_ = _TYPES[self.kind]
        if values.type != type_:
            values = values.cast(type_, safe=False)
        return values.fill_null(pa.scalar(default, type_))

    def _kind_of_default(self) -> tuple[Kind, Any]:
        default, wanted = self._default, self.kind or self._declared
        if isinstance(default, str) and wanted in ("date", "timestamp"):
            try:
                if wanted == "date":
                    return "date", datetime.date.fromisoformat(default)
                found = datetime.datetime.fromisoformat(default)
            except ValueError:
                return "text", default
            return "timestamp", found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
        kind = _KINDS.get(type(default))
        if kind is None:
            raise ConfigError(
                f"The default of the column {self.name!r} must be a number, a text or a boolean.",
                received={f"default of {self.name}": default},
            )
        return kind, default

    def _widen(self, type_: type, values: Sequence[Any], first_row: int) -> None:
        kind = _KINDS.get(type_)
        if kind is None:
            row, value = _first_of(type_, values, first_row)
            raise DataError(
                f"The column {self.name!r} holds values that cannot be trained on: {type_.__name__}"
                f" in row {row + 1:,}.",
                received=f"{_short(value)}",
                hint="Turn it into numbers or text in the SELECT, as by CAST, or leave it out.",
            )
        if kind == "text" and self._declared:
            kind = self._declared
        if self.kind is None or self.kind == kind:
            self.kind = kind
        elif {self.kind, kind} == {"integer", "number"}:
            self.kind = "number"
        else:
            raise self._mixed(type_, kind, values, first_row)

    def _mixed(self, type_: type, kind: Kind, values: Sequence[Any], first_row: int) -> DataError:
        assert self._first is not None
        row, value = _first_of(type_, values, first_row)
        first, seen = self._first
        if type(seen) is type_:  # Both kinds are in this batch; the other one was looked at first.
            row, value = next(
                (first_row + place, each)
                for place, each in enumerate(values)
                if each is not None and _KINDS.get(type(each)) != kind
            )
        return DataError(
            f"The column {self.name!r} holds values of different kinds: row {first + 1:,} has"
            f" {_short(seen)}, row {row + 1:,} has {_short(value)}.",
            received=f"the declared type {self.declared_type or 'of none'}",
            hint="Make them one kind in the SELECT, as by CAST, or leave such rows out by WHERE.",
        )

    def _array(self, values: Sequence[Any], kind: Kind, types: set[type]) -> pa.Array:
        if kind in ("date", "timestamp") and str in types:
            texts = pa.array(values, pa.string())
            if kind == "date":
                return texts.cast(pa.date32())
            try:
                return texts.cast(pa.timestamp("us")).cast(_TYPES[kind])
            except pa.ArrowInvalid:  # With zones.
                return texts.cast(_TYPES[kind])
        return pa.array(values, _TYPES[kind])

    def _unusable(self, values: Sequence[Any], first_row: int) -> DataError:
        assert self.kind is not None
        place, value = next(
            (place, value) for place, value in enumerate(values) if not self._is_usable(value)
        )
        return DataError(
            f"The column {self.name!r} holds a value that is no {self.kind} that can be used, in"
            f" row {first_row + place + 1:,}.",
            received=_short(value),
            hint="Integers have 64 bits, texts are Unicode, dates are written as 2026-01-31."
            " Change it in the SELECT, as by CAST, or leave such rows out by WHERE.",
        )

    def _is_usable(self, value: Any) -> bool:
        assert self.kind is not None
        try:
            self._array([value], self.kind, {type(value)})
        except _UNUSABLE:
            return False
        return True

    def _look_at_numbers(self, values: pa.Array, first_row: int) -> None:
        """Take note of what 32-bit floating point loses; refuse what is not finite."""
        found = values.fill_null(0) if values.null_count else values
        numbers = found.to_numpy(zero_copy_only=False)
        if self.kind == "number" and not np.isfinite(numbers).all():
            place = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise DataError(
                f"The column {self.name!r} holds a number that is not finite, in row"
                f" {first_row + place + 1:,}.",
                received=str(numbers[place]),
                hint="Change it in the SELECT, or leave such rows out by WHERE.",
            )
        if numbers.max() <= _LARGEST_EXACT and numbers.min() >= -_LARGEST_EXACT:
            return
        with np.errstate(over="ignore"):
            loses = (np.abs(numbers) > _LARGEST_EXACT) & (numbers.astype(np.float32) != numbers)
        places = np.flatnonzero(loses)
        if len(places) and self.first_inexact is None:
            self.first_inexact = (first_row + int(places[0]), numbers[places[0]].item())
        self.num_inexact += len(places)


def _has_form(texts: pa.Array, form: str) -> bool:
    try:
        texts.cast(_DATE_FORMS[form][0])
    except pa.ArrowInvalid:
        return False
    return True


def _from_memory(values: "array.array[Any]", type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def _first_of(type_: type, values: Sequence[Any], first_row: int) -> tuple[int, object]:
    place = next(place for place in itertools.count() if type(values[place]) is type_)
    return first_row + place, values[place]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
