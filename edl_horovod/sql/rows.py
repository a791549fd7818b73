"""The rows of a running SELECT, fetched in batches, and the limits of a result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_ROWS = 10_000
"""Maximum number of rows in a result."""
MOST_BYTES = 16 << 20
"""Approximate maximum size of the values in a result."""

BATCH_ROWS = 500
"""Number of rows that are held as Python objects at the same time.

They fit into the processor's cache, and are fewer than the 700 new objects at which the garbage
collector runs.
"""
_FETCH_BYTES = 1 << 20
"""Approximate size of the rows that are fetched at a time for a result."""
_BATCHES_PER_FETCH = 4
"""Batches in one round trip to a server."""

FetchRows = Callable[[int], list[tuple[Any, ...]]]
"""Returns the next rows, at most the given number; an empty list at the end."""


class SelectColumn(NamedTuple):
    """A column of a SELECT."""

    name: str
    declared_type: str
    """The engine's name of the type; empty if it does not report one."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The columns of a SELECT, and a function that fetches its rows."""

    columns: tuple[SelectColumn, ...]
    fetch: FetchRows


def server_cursor_rows(cursor: Any) -> FetchRows:
    """Fetch rows of a server-side cursor of PostgreSQL, several batches a round trip.

    Wide rows come one batch a round trip. A batch is converted to Python objects when it is
    fetched.

    Args:
        cursor: A named cursor of psycopg that has executed its SELECT.
    """
    client_cursor = cursor.connection.cursor()

    def fetch(num_rows: int) -> list[tuple[Any, ...]]:
        if (client_cursor.rownumber or 0) >= client_cursor.rowcount:
            # A caller asks for smaller batches if rows are wide, and has no room for more.
            num_requested = _BATCHES_PER_FETCH * num_rows if num_rows == BATCH_ROWS else num_rows
            # The name was chosen by `Engine` and needs no quotes.
            client_cursor.execute(f"FETCH FORWARD {num_requested} FROM {cursor.name}")
        batch: list[tuple[Any, ...]] = client_cursor.fetchmany(num_rows)
        return batch

    return fetch


def first_rows(fetch: FetchRows) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """The first rows up to the limits of a result, and whether there are more."""
    rows: list[tuple[Any, ...]] = []
    num_bytes, num_requested = 0, 1
    while batch := fetch(num_requested):
        for row in batch:
            if len(rows) == MOST_ROWS or num_bytes > MOST_BYTES:
                return tuple(rows), True
            rows.append(tuple(row))
            num_bytes += sum(map(_size, row))
        mean = num_bytes // len(rows) + 1
        num_requested = max(1, min(BATCH_ROWS, _FETCH_BYTES // mean))
    return tuple(rows), False


def _size(value: object) -> int:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value)
    return 8 if value is None or isinstance(value, int | float) else len(str(value))
