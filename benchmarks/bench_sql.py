"""Rows per second of a SELECT's export into Parquet, against its driver reading the same rows."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg

from benchmarks.common import Comparison, Numbers, Workspace, compare_rates, interleave
from tests import databases

__all__ = ["measure"]

LEAST_RATIO = 0.7
SELECT = "SELECT name, role, salary, age FROM employee"


TABLE = (
    "CREATE TABLE employee"
    " (id INTEGER PRIMARY KEY, name TEXT, role TEXT, salary DOUBLE PRECISION, age INTEGER)"
)


def measure(space: Workspace) -> list[Comparison]:
    """Read a table with texts, fractions and whole numbers, both ways in turn.

    Args:
        space: Takes the table of SQLite; that of PostgreSQL is in a server of its own.

    Raises:
        SideFailed: One of the runs failed.
    """
    num_rows = 8 * space.settings.num_records
    path = space.folder / "employee.db"
    _make_sqlite(path, num_rows)
    found = [_compare(space, "SQLite", f"sqlite:///{path}")]
    if databases.POSTGRESQL.exists():
        with databases.postgresql() as server:
            url = f"{server}postgres"
            _make_postgresql(url, num_rows)
            found.append(_compare(space, "PostgreSQL", url))
    return found


def _compare(space: Workspace, name: str, url: str) -> Comparison:
    def side(module: str) -> Callable[[], Numbers]:
        return lambda: space.run_side(module, f"--url={url}", f"--select={SELECT}")

    sides = {
        "export": side("benchmarks.ours.sql_export"),
        "driver": side("benchmarks.peers.sql_driver"),
    }
    found = interleave(sides, space.settings.repetitions)
    rates = {name: [numbers["rate"] for numbers in each] for name, each in found.items()}
    line = f"SQL, rows of {name} into Parquet / its driver alone"
    return compare_rates(line, rates["export"], rates["driver"], target=LEAST_RATIO)


def _make_postgresql(url: str, num_rows: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
        with connection.cursor().copy("COPY employee FROM STDIN") as copy:
            for row in _rows(num_rows):
                copy.write_row(row)


def _make_sqlite(path: Path, num_rows: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(TABLE)
        connection.executemany("INSERT INTO employee VALUES (?, ?, ?, ?, ?)", _rows(num_rows))


def _rows(num_rows: int) -> Iterator[tuple[object, ...]]:
    for number in range(num_rows):
        yield number, f"name {number % 5000}", f"role {number % 7}", number * 1.5, number % 90
