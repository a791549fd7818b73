"""One reading of a SELECT's rows with the driver alone: rows per second."""

import sqlite3
import sys
import time
from contextlib import closing
from typing import Any

import psycopg

from benchmarks.common import side_parser, write_numbers

ROWS = 1_000


def _connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url)


def main() -> int:
    """Read; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--select", required=True)
    args = parser.parse_args()
    num_rows = 0
    began = time.perf_counter()
    with closing(_connect(args.url)) as connection:
        cursor = connection.cursor() if args.url.startswith("sqlite") else connection.cursor("rows")
        with closing(cursor):
            cursor.execute(args.select)
            while rows := cursor.fetchmany(ROWS):
                num_rows += len(rows)
    write_numbers(args.place, {"rate": num_rows / (time.perf_counter() - began)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
