"""The rows of a SELECT that is running."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BATCH_ROWS",
    "MOST_ROWS",
    "FetchRows",
    "Rows",
    "SelectColumn",
    "first_rows",
    "from_server",
]

MOST_ROWS = 10_000
"""Rows of a result that a user gets."""
MOST_BYTES = 16 << 20
"""The same in bytes of their values, about."""

BATCH_ROWS = 500
"""Rows that are best Python objects at a time.

They stay in the processor's cache until they were read, and are fewer than the 700 new objects at
which the garbage collector runs.
"""
_ASKED_BYTES = 1 << 20
"""Bytes of the rows of a result that are asked for at a time, about."""
_BATCHES = 4
"""Whole batches of a round trip to a server."""

FetchRows = Callable[[int], list[tuple[Any, ...]]]
"""Gives the next rows, at most so many; an empty list at the end."""


@dataclass(frozen=True, kw_only=True)
class SelectColumn:
    """A column that a SELECT gives."""

    name: str
    declared_type: str
    """As the engine calls it; empty if it does not say."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a SELECT as the driver gives them."""

    columns: tuple[SelectColumn, ...]
    fetch: FetchRows


def from_server(cursor: Any) -> FetchRows:
    """The rows of a cursor that PostgreSQL keeps, some batches a round trip, or one of wide rows.

    Each batch becomes Python objects when it is fetched.

    Args:
        cursor: Of psycopg, with a name, after its SELECT.
    """
    answers = cursor.connection.cursor()

    def fetch(num_rows: int) -> list[tuple[Any, ...]]:
        if (answers.rownumber or 0) >= answers.rowcount:
            # Of rows that are wide, or may be, fewer are asked for: these have no room for more.
            num_asked = _BATCHES * num_rows if num_rows == BATCH_ROWS else num_rows
            # The name is the cursor's own, which needs no quotes.
            answers.execute(f"FETCH FORWARD {num_asked} FROM {cursor.name}")
        found: list[tuple[Any, ...]] = answers.fetchmany(num_rows)
        return found

    return fetch


def first_rows(fetch: FetchRows) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """The rows of a result that a user gets, and whether there are more."""
    rows: list[tuple[Any, ...]] = []
    num_bytes, num_asked = 0, 1
    while batch := fetch(num_asked):
        for row in batch:
            if len(rows) == MOST_ROWS or num_bytes > MOST_BYTES:
                return tuple(rows), True
            rows.append(tuple(row))
            num_bytes += sum(map(_size, row))
        mean = num_bytes // len(rows) + 1
        num_asked = max(1, min(BATCH_ROWS, _ASKED_BYTES // mean))
    return tuple(rows), False


def _size(value: object) -> int:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value)
    return 8 if value is None or isinstance(value, int | float) else len(str(value))
