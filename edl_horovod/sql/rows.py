"""The rows of a SELECT that is running."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BATCH_ROWS", "FetchRows", "Rows", "SelectColumn", "from_server"]

BATCH_ROWS = 500
"""Rows that are best Python objects at a time.

They stay in the processor's cache until they were read, and are fewer than the 700 new objects at
which the garbage collector runs.
"""
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
