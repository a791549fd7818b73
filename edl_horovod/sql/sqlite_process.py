"""The process that runs one SELECT on a SQLite file; it ends when its stdin is closed.

It reads a pickle from stdin: the arguments and options of `sqlite3.connect`, the SELECT, and
whether it must stay within the database. It writes pickles to stdout, each preceded by its size:
the columns as pairs of a name and a declared type, then the rows in batches, and an empty batch at
the end; or a text, which is the error of the database.
"""

import io
import math
import os
import pickle
import re
import signal
import sqlite3
import struct
import sys
import threading
from contextlib import closing

from edl_horovod.sql.confinement import confine_sqlite
from edl_horovod.sql.rows import BATCH_ROWS

__all__ = ["HEADER", "main", "open_select"]

HEADER = struct.Struct("<q")
"""The size of the pickle that follows, in bytes."""
_FIRST_ROWS = 8
"""Rows of the first batch, which shows how large a row is."""
_BATCH_BYTES = 1 << 20


def main() -> None:
    """Run the SELECT that is read from stdin."""
    # Ctrl-C in a terminal reaches the command, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments, options, select, is_confined = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, name="lifeline", daemon=True).start()
    try:
        with closing(sqlite3.connect(*arguments, **options)) as connection:
            if is_confined:
                confine_sqlite(connection)
            _run(connection, select)
    # Before Python 3.12 two statements raise a Warning, which is not an Error.
    except (sqlite3.Error, sqlite3.Warning) as e:
        _write(str(e) or type(e).__name__)


def _end_with_stdin() -> None:
    # A SELECT that sorts a large table would run on after the command was killed.
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def open_select(
    connection: sqlite3.Connection, select: str
) -> tuple[sqlite3.Cursor, list[tuple[str, str]]]:
    """Run a SELECT; returns its cursor, and the name and declared type of each column.

    The connection is read-only afterwards.
    """
    # A view has the declared types of the table columns that it selects.
    connection.execute(f'CREATE TEMP VIEW "edl_select" AS {select}')
    definitions = connection.execute('PRAGMA temp.table_info("edl_select")').fetchall()
    connection.execute('DROP VIEW temp."edl_select"')
    connection.execute("PRAGMA query_only = ON")
    cursor = connection.execute(select)
    names = [str(column[0]) for column in cursor.description]
    return cursor, [
        (name, str(column[2] or "")) for name, column in zip(names, definitions, strict=True)
    ]


def _run(connection: sqlite3.Connection, select: str) -> None:
    # SQLAlchemy defines these functions on the connections of other statements.
    connection.create_function("regexp", 2, _regexp, deterministic=True)
    connection.create_function("floor", 1, math.floor, deterministic=True)
    cursor, columns = open_select(connection, select)
    _write(columns)
    num_read, num_requested = 1, _FIRST_ROWS
    while num_read:
        num_read, num_bytes = _forward(cursor, num_requested)
        num_requested = max(1, min(BATCH_ROWS, _BATCH_BYTES * num_read // num_bytes))


def _forward(cursor: sqlite3.Cursor, num_rows: int) -> tuple[int, int]:
    """Write the next rows; returns their number and their size in bytes."""
    rows = cursor.fetchmany(num_rows)
    return len(rows), _write(rows)


def _write(content: object) -> int:
    """Write a pickle and return its size; waits while the pipe is full."""
    stream = io.BytesIO()
    stream.seek(HEADER.size)
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    # Batches hold no object twice, and looking for duplicates doubles the time.
    pickler.fast = True
    pickler.dump(content)
    num_bytes = stream.tell() - HEADER.size
    HEADER.pack_into(stream.getbuffer(), 0, num_bytes)
    # One write, so that the command wakes up once.
    sys.stdout.buffer.write(stream.getbuffer())
    sys.stdout.buffer.flush()
    return num_bytes


def _regexp(pattern: str, text: str | None) -> bool | None:
    return None if text is None else re.search(pattern, text) is not None


if __name__ == "__main__":
    main()
