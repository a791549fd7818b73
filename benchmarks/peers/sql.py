"""One reading of a SELECT's rows with the driver alone: rows per second."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.side import Numbers, Work

ROWS = 1_000


def read_rows(work: Work, place: Path, url: str, select: str) -> Numbers:
    """Read all rows, some at a time."""
    is_sqlite, num_rows = url.startswith("sqlite"), 0
    began = time.perf_counter()
    connection: Any = (
        sqlite3.connect(url.removeprefix("sqlite:///")) if is_sqlite else psycopg.connect(url)
    )
    name = () if is_sqlite else ("rows",)
    with closing(connection), closing(connection.cursor(*name)) as cursor:
        cursor.execute(select)
        while rows := cursor.fetchmany(ROWS):
            num_rows += len(rows)
    return {"rate": num_rows / (time.perf_counter() - began)}
