"""Stream the rows of a SELECT on a SQLite file, which another process reads.

The driver needs more time to read rows than all later steps together, and blocks all threads of its
process while it reads. Two processes use two cores.

The process, `python -m` this module, ends when its stdin is closed. It reads a pickle from stdin:
the arguments and options of `sqlite3.connect`, the SELECT, and whether it must stay within the
database. It writes pickles to stdout, each preceded by its size: the columns as pairs of a name and
a declared type, then the rows in batches, and an empty batch at the end; or a text, which is the
error of the database.
"""

import fcntl
import io
import math
import os
import pickle
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from edl_horovod.sql.confinement import confine_sqlite
from edl_horovod.sql.rows import BATCH_ROWS, Rows, SelectColumn

_PIPE_BYTES = 1 << 20
"""How far the process may read ahead: the largest pipe that Linux gives an ordinary user."""
_HEADER = struct.Struct("<q")
"""The size of the pickle that follows, in bytes."""
_FIRST_ROWS = 8
"""Rows of the first batch, which shows how large a row is."""
_BATCH_BYTES = 1 << 20


@contextmanager
def reading(
    arguments: Sequence[Any], options: Mapping[str, Any], select: str, *, is_confined: bool
) -> Iterator[Rows]:
    """Run a SELECT on a read-only connection and stream its rows.

    Args:
        arguments: Positional arguments of `sqlite3.connect`.
        options: Keyword arguments of `sqlite3.connect`.
        select: The SELECT, which is run unchanged.
        is_confined: Whether it must stay within the database.

    Raises:
        sqlite3.Error: The database refuses the SELECT, or the process was killed.
    """
    command = (sys.executable, "-m", "edl_horovod.sql.sqlite_rows")
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C in a terminal reaches this process alone, which ends the other one.
        start_new_session=True,
    ) as process:
        try:
            batches = _Batches(process)
            batches.send((tuple(arguments), dict(options), select, is_confined))
            yield Rows(columns=tuple(map(SelectColumn._make, batches.next())), fetch=batches.fetch)
        finally:
            process.kill()


class _Batches:
    """The batches of rows that the process writes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._rows: list[tuple[Any, ...]] = []
        """Rows that were read and not yet fetched."""
        self._is_at_end = False

    def send(self, request: object) -> None:
        """Send the SELECT to the process; its stdin stays open, because closing it ends it."""
        with suppress(PermissionError):  # The user has too many pipes; this one stays small.
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with suppress(BrokenPipeError):  # The process is dead, which `next` reports.
            pickle.dump(request, self._stdin)
            self._stdin.flush()

    def next(self) -> list[tuple[Any, ...]]:
        """The next batch, or the columns.

        Raises:
            sqlite3.Error: The database refused the SELECT, or the process ended early.
        """
        try:
            (num_bytes,) = _HEADER.unpack(self._stdout.read(_HEADER.size))
            content = pickle.loads(self._stdout.read(num_bytes))
        except (struct.error, EOFError, pickle.UnpicklingError):  # The stream ends early.
            code = self._process.wait()
            raise sqlite3.OperationalError(
                f"the process that reads the rows ended early, with exit code {code}"
            ) from None
        if isinstance(content, str):
            raise sqlite3.OperationalError(content)
        assert isinstance(content, list)
        return content

    def fetch(self, num_rows: int) -> list[tuple[Any, ...]]:
        """The next rows, at most `num_rows`; empty at the end."""
        if not self._rows and not self._is_at_end:
            self._rows = self.next()
            self._is_at_end = not self._rows
        rows, self._rows = self._rows[:num_rows], self._rows[num_rows:]
        return rows


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
            _send_rows(connection, select)
    # Before Python 3.12 two statements raise a Warning, which is not an Error.
    except (sqlite3.Error, sqlite3.Warning) as e:
        _send(str(e) or type(e).__name__)


def _end_with_stdin() -> None:
    # A SELECT that sorts a large table would run on after the command was killed.
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def open_select(
    connection: sqlite3.Connection, select: str
) -> tuple[sqlite3.Cursor, tuple[SelectColumn, ...]]:
    """Run a SELECT; returns its cursor, and the name and declared type of each column.

    The connection is read-only afterwards.
    """
    # A view has the declared types of the table columns that it selects.
    connection.execute(f'CREATE TEMP VIEW "edl_select" AS {select}')
    definitions = connection.execute('PRAGMA temp.table_info("edl_select")').fetchall()
    connection.execute('DROP VIEW temp."edl_select"')
    connection.execute("PRAGMA query_only = ON")
    cursor = connection.execute(select)
    columns = zip(cursor.description, definitions, strict=True)
    return cursor, tuple(
        SelectColumn(str(column[0]), str(definition[2] or "")) for column, definition in columns
    )


def _send_rows(connection: sqlite3.Connection, select: str) -> None:
    # SQLAlchemy defines these functions on the connections of other statements.
    connection.create_function("regexp", 2, _regexp, deterministic=True)
    connection.create_function("floor", 1, math.floor, deterministic=True)
    cursor, columns = open_select(connection, select)
    _send(list(map(tuple, columns)))
    num_read, num_requested = 1, _FIRST_ROWS
    while num_read:
        num_read, num_bytes = _send_batch(cursor, num_requested)
        num_requested = max(1, min(BATCH_ROWS, _BATCH_BYTES * num_read // num_bytes))


def _send_batch(cursor: sqlite3.Cursor, num_rows: int) -> tuple[int, int]:
    """Send the next rows; returns their number and their size in bytes."""
    rows = cursor.fetchmany(num_rows)
    return len(rows), _send(rows)


def _send(content: object) -> int:
    """Send a pickle and return its size; waits while the pipe is full."""
    stream = io.BytesIO()
    stream.seek(_HEADER.size)
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    # Batches hold no object twice, and looking for duplicates doubles the time.
    pickler.fast = True
    pickler.dump(content)
    num_bytes = stream.tell() - _HEADER.size
    _HEADER.pack_into(stream.getbuffer(), 0, num_bytes)
    # One write, so that the command wakes up once.
    sys.stdout.buffer.write(stream.getbuffer())
    sys.stdout.buffer.flush()
    return num_bytes


def _regexp(pattern: str, text: str | None) -> bool | None:
    return None if text is None else re.search(pattern, text) is not None


if __name__ == "__main__":
    main()
