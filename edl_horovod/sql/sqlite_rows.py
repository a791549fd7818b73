"""The rows of a SELECT on a SQLite file, which another process reads.

The driver needs more time to read rows than all later steps together, and blocks all threads of its
process while it reads. Two processes use two cores.
"""

import fcntl
import pickle
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from edl_horovod.sql.rows import Rows, SelectColumn
from edl_horovod.sql.sqlite_process import HEADER

__all__ = ["columns_of", "reading"]

_PIPE_BYTES = 1 << 20
"""How far the process may read ahead: the largest pipe that Linux gives an ordinary user."""


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
    command = (sys.executable, "-m", "edl_horovod.sql.sqlite_process")
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
            yield Rows(columns=columns_of(batches.next()), fetch=batches.fetch)
        finally:
            process.kill()


def columns_of(pairs: Sequence[tuple[str, str]]) -> tuple[SelectColumn, ...]:
    """The columns from the names and declared types that `open_select` returns."""
    return tuple(SelectColumn(name=name, declared_type=declared) for name, declared in pairs)


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
            (num_bytes,) = HEADER.unpack(self._stdout.read(HEADER.size))
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
