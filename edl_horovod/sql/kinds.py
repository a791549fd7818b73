"""The kinds of columns, inferred from all of their values, and the SQL types of kinds.

A declared type is weak evidence, because SQLite stores any value in any column. So it decides only
where a value has two meanings: SQLite has no dates, only texts in columns declared as dates.
"""

import array
import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.rows import SelectColumn

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
_ARROW_TYPES: dict[Kind, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    # A timestamp without a zone counts as UTC.
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DATE_FORMATS: dict[str, tuple[pa.DataType, ...]] = {
    "date": (pa.date32(),),
    "without a zone": (pa.timestamp("us"), _ARROW_TYPES["timestamp"]),
    "with a zone": (_ARROW_TYPES["timestamp"],),
}
"""Formats of dates in texts, and the types to which such texts are cast in turn."""
_LARGEST_EXACT = 1 << 24
"""Whole numbers up to this limit are exact in 32-bit floating point, which models use."""
_LARGEST_EXACT_DOUBLE = 1 << 53
"""The same limit in 64-bit floating point."""
_SHOWN_CHARACTERS = 40
_CONVERSION_ERRORS = (pa.ArrowInvalid, OverflowError, UnicodeEncodeError)
_NULL = type(None)
_ONLY_NULL = {_NULL}
SQL_TYPES: Mapping[Kind, sa.types.TypeEngine[Any]] = {
    "boolean": sa.Boolean(),
    "integer": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "number": sa.Double().with_variant(sa.REAL(), "sqlite"),
    "text": sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"),
    "bytes": sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
    "date": sa.Date(),
    "timestamp": sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb"),
}
"""The types of new columns, by the kind of their values."""
_MYSQL_DIGITS = 65
"""Maximum digits of a DECIMAL."""
_TYPES_OF_PREDICTIONS = (bool, int, float, str)


class ScannedColumn:
    """The kind, NULLs and inexact numbers of a column, updated batch by batch."""

    def __init__(
        self,
        column: SelectColumn,
        *,
        default: object = None,
        kind_of_texts: Kind | None = None,
        may_be_dates: bool = False,
    ) -> None:
        """Describe a column of which no row has been read.

        Args:
            column: The column as the engine describes it.
            default: The value that replaces NULL; None keeps NULL.
            kind_of_texts: `date` or `timestamp` if the texts are such, whatever type is declared.
            may_be_dates: Whether the column becomes one of dates if all of its texts are dates.
        """
        self.name = column.name
        self.declared_type = column.declared_type
        self.kind: Kind | None = None
        self.num_nulls = 0
        self.first_null_row: int | None = None
        self.num_inexact = 0
        """Number of values that lose digits in 32-bit floating point."""
        self.first_inexact: tuple[int, float] | None = None
        self._default = default
        self._first_value: tuple[int, object] | None = None
        self._types: set[type] = set()
        """Types of the values in the last batch; the kind covers them and all earlier ones."""
        declared_type = column.declared_type.upper()
        self._kind_of_texts: Kind | None = None
        """`date` or `timestamp` if texts are such; otherwise None."""
        if declared_type.startswith(("TIMESTAMP", "DATETIME")):
            self._kind_of_texts = "timestamp"
        elif declared_type.startswith("DATE"):
            self._kind_of_texts = "date"
        self._kind_of_texts = kind_of_texts or self._kind_of_texts
        self._date_formats = [*_DATE_FORMATS] if may_be_dates and not self._kind_of_texts else []
        """The formats of dates that all texts so far have."""
        if default is not None:
            self._narrow_date_formats(pa.array([str(default)]))

    def read(self, values: Sequence[Any], *, first_row: int) -> pa.Array:
        """Convert the values of consecutive rows to an array.

        Args:
            values: The values of the rows; None is NULL.
            first_row: The index of the first of the rows, from 0.

        Raises:
            DataError: A value has another kind than the earlier ones, or cannot be converted.
        """
        array_of_one_type = self._read_one_type(values)
        if array_of_one_type is not None:
            return array_of_one_type
        types = set(map(type, values))
        if types != self._types:
            if types == _ONLY_NULL:
                return pa.nulls(len(values), _ARROW_TYPES[self.kind] if self.kind else pa.null())
            if self._first_value is None:
                rows = enumerate(values, first_row)
                self._first_value = next((row, value) for row, value in rows if value is not None)
            for type_ in types - _ONLY_NULL:
                self._widen(type_, values, first_row)
            self._types = types
        assert self.kind is not None
        if Decimal in types or (self.kind == "number" and int in types):
            values = [None if value is None else float(value) for value in values]
        try:
            return self._array(values, self.kind, types)
        except _CONVERSION_ERRORS:
            raise self._conversion_error(values, first_row) from None

    def _read_one_type(self, values: Sequence[Any]) -> pa.Array | None:
        """Convert values that all have the single type of the last batch; None if they may not.

        The conversion itself refuses other types, which is cheaper than asking every value for its
        type. No driver mixes booleans with integers.
        """
        try:
            if self._types == {int} and self.kind == "integer":
                return _array_of_buffer(array.array("q", values), pa.int64())
            if self._types == {str} and self.kind == "text":
                "".join(values)
                return pa.array(values, pa.string())
            if self._types == {float} and self.kind == "number":
                numbers = array.array("d", values)
                # `array` also accepts integers, and larger ones would lose digits.
                if np.abs(np.frombuffer(numbers)).max() < _LARGEST_EXACT_DOUBLE:
                    return _array_of_buffer(numbers, pa.float64())
        except (TypeError, *_CONVERSION_ERRORS):
            return None
        return None

    def concatenated(self, parts: Sequence[pa.Array], *, first_row: int) -> pa.Array:
        """Concatenate arrays that `read` returned, and count NULLs and inexact numbers.

        Raises:
            DataError: A number is not finite.
        """
        if self.kind is not None:
            type_ = _ARROW_TYPES[self.kind]
            parts = [part if part.type == type_ else part.cast(type_, safe=False) for part in parts]
        values = pa.concat_arrays(parts)
        if values.null_count:
            if self.first_null_row is None:
                self.first_null_row = first_row + pc.index(values.is_null(), True).as_py()
            self.num_nulls += values.null_count
        if self.kind in ("integer", "number"):
            self._check_numbers(values, first_row)
        if self.kind == "text":
            self._narrow_date_formats(values)
        return values

    def infer_dates(self) -> Sequence[pa.DataType]:
        """Make this a column of dates if all of its texts are dates; called after the last row.

        Returns:
            The types to which the texts are cast in turn; empty if they stay texts.
        """
        if self.kind != "text" or not self._date_formats:
            return ()
        types = _DATE_FORMATS[self._date_formats[0]]
        self.kind = "date" if types == (pa.date32(),) else "timestamp"
        return types

    def _narrow_date_formats(self, texts: pa.Array) -> None:
        self._date_formats = [
            date_format for date_format in self._date_formats if _has_format(texts, date_format)
        ]

    def filled(self, values: pa.Array) -> pa.Array:
        """The values with NULLs replaced by the default.

        Raises:
            ConfigError: The default has another kind than the column.
        """
        if not values.null_count or self._default is None:
            return values
        kind, default = self._kind_of_default()
        if self.kind is None:
            self.kind, self._first_value = kind, (self.first_null_row or 0, default)
        elif {self.kind, kind} == {"integer", "number"}:
            self.kind = "number"
        elif self.kind != kind:
            raise ConfigError(
                f"The default of the column {self.name!r} has the kind {kind}, and its values have"
                f" the kind {self.kind}.",
                received={f"default of {self.name}": self._default},
                hint=f"Give a default of the kind {self.kind}.",
            )
        type_ = _ARROW_TYPES[self.kind]
        if values.type != type_:
            values = values.cast(type_, safe=False)
        return values.fill_null(pa.scalar(default, type_))

    def _kind_of_default(self) -> tuple[Kind, Any]:
        default, column_kind = self._default, self.kind or self._kind_of_texts
        if isinstance(default, str) and column_kind in ("date", "timestamp"):
            try:
                if column_kind == "date":
                    return "date", datetime.date.fromisoformat(default)
                moment = datetime.datetime.fromisoformat(default)
            except ValueError:
                return "text", default
            return "timestamp", moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        kind = _KINDS.get(type(default))
        if kind is None:
            raise ConfigError(
                f"The default of the column {self.name!r} must be a number, a text or a boolean.",
                received={f"default of {self.name}": default},
            )
        return kind, default

    def _widen(self, type_: type, values: Sequence[Any], first_row: int) -> None:
        """Widen the column's kind, if need be, to hold values of a Python type.

        Args:
            type_: The type.
            values: A batch that has values of this type, for errors.
            first_row: The number of the batch's first row, from 0.

        Raises:
            DataError: No kind holds these values and the earlier ones.
        """
        kind = _KINDS.get(type_)
        if kind is None:
            row, value = _first_of_type(type_, values, first_row)
            raise DataError(
                f"The column {self.name!r} holds values that no model can read: {type_.__name__}"
                f" in row {row + 1:,}.",
                received=_shortened(value),
                hint="Convert it to a number or a text in the SELECT, for example by CAST, or leave"
                " it out.",
            )
        if kind == "text" and self._kind_of_texts:
            kind = self._kind_of_texts
        if self.kind is None or self.kind == kind:
            self.kind = kind
        elif {self.kind, kind} == {"integer", "number"}:
            self.kind = "number"
        else:
            raise self._mixed_kinds_error(type_, kind, values, first_row)

    def _mixed_kinds_error(
        self, type_: type, kind: Kind, values: Sequence[Any], first_row: int
    ) -> DataError:
        assert self._first_value is not None
        row, value = _first_of_type(type_, values, first_row)
        first, first_value = self._first_value
        if type(first_value) is type_:  # This batch has both kinds; show a value of the other one.
            row, value = next(
                (row, other)
                for row, other in enumerate(values, first_row)
                if other is not None and _KINDS.get(type(other)) != kind
            )
        return DataError(
            f"The column {self.name!r} holds values of different kinds: row {first + 1:,} has"
            f" {_shortened(first_value)}, row {row + 1:,} has {_shortened(value)}.",
            received=f"the declared type {self.declared_type or '(none)'}",
            hint="Convert them to one kind in the SELECT, for example by CAST, or leave such rows"
            " out by WHERE.",
        )

    def _array(self, values: Sequence[Any], kind: Kind, types: set[type]) -> pa.Array:
        if kind in ("date", "timestamp") and str in types:
            texts = pa.array(values, pa.string())
            if kind == "date":
                return texts.cast(pa.date32())
            try:
                return texts.cast(pa.timestamp("us")).cast(_ARROW_TYPES[kind])
            except pa.ArrowInvalid:  # The texts have time zones.
                return texts.cast(_ARROW_TYPES[kind])
        return pa.array(values, _ARROW_TYPES[kind])

    def _conversion_error(self, values: Sequence[Any], first_row: int) -> DataError:
        assert self.kind is not None
        rows = enumerate(values, first_row)
        row, value = next((row, value) for row, value in rows if not self._is_convertible(value))
        return DataError(
            f"The column {self.name!r} of the kind {self.kind} holds a value that cannot be"
            f" converted, in row {row + 1:,}.",
            received=_shortened(value),
            hint="Integers have 64 bits, texts are Unicode, dates are written as 2026-01-31."
            " Change it in the SELECT, for example by CAST, or leave such rows out by WHERE.",
        )

    def _is_convertible(self, value: Any) -> bool:
        assert self.kind is not None
        try:
            self._array([value], self.kind, {type(value)})
        except _CONVERSION_ERRORS:
            return False
        return True

    def _check_numbers(self, values: pa.Array, first_row: int) -> None:
        """Count numbers that are inexact in 32-bit floating point; refuse infinite ones and NaN."""
        without_nulls = values.fill_null(0) if values.null_count else values
        numbers = without_nulls.to_numpy(zero_copy_only=False)
        if self.kind == "number" and not np.isfinite(numbers).all():
            index = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise DataError(
                f"The column {self.name!r} holds a number that is not finite, in row"
                f" {first_row + index + 1:,}.",
                received=str(numbers[index]),
                hint="Change it in the SELECT, or leave such rows out by WHERE.",
            )
        if numbers.max() <= _LARGEST_EXACT and numbers.min() >= -_LARGEST_EXACT:
            return
        with np.errstate(over="ignore"):
            is_rounded = numbers.astype(np.float32) != numbers
            indices = np.flatnonzero((np.abs(numbers) > _LARGEST_EXACT) & is_rounded)
        if len(indices) and self.first_inexact is None:
            self.first_inexact = (first_row + int(indices[0]), numbers[indices[0]].item())
        self.num_inexact += len(indices)


class DeclaredType(sa.types.UserDefinedType[Any]):
    """A SQLite column with the affinity of a declared type, which binds values unchanged."""

    cache_ok = True

    def __init__(self, declared: str = "") -> None:
        self.declared = declared

    def get_col_spec(self, **_: Any) -> str:
        """The type in a column definition; SQLAlchemy calls this."""
        quoted = self.declared.replace('"', '""')
        return f'"{quoted}"' if quoted else ""


def exact_type(engine: Engine, kind: Kind, declared: str, scale: int | None) -> Any:
    """The type of a new column that holds selected values with all of their digits.

    Args:
        engine: The database.
        kind: The kind of the values.
        declared: The engine's name of their type.
        scale: Decimal places of numbers that floating point cannot hold; otherwise None.
    """
    if engine.dialect == "sqlite" and kind in ("integer", "number"):
        return DeclaredType("" if scale is not None else declared)
    if engine.dialect == "postgres" and kind == "timestamp" and declared.startswith("timestamptz"):
        return sa.DateTime(timezone=True)
    if kind != "number" or scale is None:
        return SQL_TYPES[kind]
    return mysql.DECIMAL(_MYSQL_DIGITS, scale) if engine.dialect == "mysql" else sa.Numeric()


def type_of_value(value: object) -> sa.types.TypeEngine[Any]:
    """The type of a column of predictions.

    Raises:
        DataError: The value is neither a number nor a text.
    """
    kind = type(value)
    if kind not in _TYPES_OF_PREDICTIONS:
        raise DataError("A prediction is neither a number nor a text.", received=kind.__name__)
    return SQL_TYPES[_KINDS[kind]]


def _has_format(texts: pa.Array, date_format: str) -> bool:
    try:
        texts.cast(_DATE_FORMATS[date_format][0])
    except pa.ArrowInvalid:
        return False
    return True


def _array_of_buffer(values: "array.array[Any]", type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def _first_of_type(type_: type, values: Sequence[Any], first_row: int) -> tuple[int, object]:
    return next(pair for pair in enumerate(values, first_row) if type(pair[1]) is type_)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
