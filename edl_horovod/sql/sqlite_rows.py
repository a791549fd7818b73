"""The rows of a SELECT on a file of SQLite, which a process of its own reads.

To read rows takes the driver longer than all that is done with them afterwards, and it lets nothing
else in its process run in the meantime. Two processes use two cores.
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
"""What the process may be ahead: as much as Linux lets anybody have."""


@contextmanager
def reading(
    arguments: Sequence[Any], options: Mapping[str, Any], select: str, *, is_confined: bool
) -> Iterator[Rows]:
    """Run a SELECT that cannot write, and stream its rows.

    Args:
        arguments: Of `sqlite3.connect`.
        options: The same, by name.
        select: It runs as it is.
        is_confined: Whether it must stay within the database.

    Raises:
        sqlite3.Error: The database refuses the SELECT, or the process was killed.
    """
    command = (sys.executable, "-m", "edl_horovod.sql.sqlite_process")
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C in a terminal goes to this process alone, which ends the other one.
        start_new_session=True,
    ) as process:
        try:
            batches = _Batches(process)
            batches.ask((tuple(arguments), dict(options), select, is_confined))
            yield Rows(columns=columns_of(batches.next()), fetch=batches.fetch)
        finally:
            process.kill()


def columns_of(pairs: Sequence[tuple[str, str]]) -> tuple[SelectColumn, ...]:
    """The columns of which `open_select` gives the names and declared types."""
    return tuple(SelectColumn(name=name, declared_type=declared) for name, declared in pairs)


class _Batches:
    """What the process writes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._rows: list[tuple[Any, ...]] = []
        """Those that were read and not fetched."""
        self._is_at_end = False

    def ask(self, request: object) -> None:
        """Tell the process what to do. Its stdin stays open: the end of that ends it."""
        with suppress(PermissionError):  # The user has many pipes; this one stays small.
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with suppress(BrokenPipeError):  # It is dead, which `next` says.
            pickle.dump(request, self._stdin)
            self._stdin.flush()

    def next(self) -> list[tuple[Any, ...]]:
        """The next batch, or the columns.

        Raises:
            sqlite3.Error: It is an error, or there is none.
        """
        try:
            (num_bytes,) = HEADER.unpack(self._stdout.read(HEADER.size))
            found = pickle.loads(self._stdout.read(num_bytes))
        except (struct.error, EOFError, pickle.UnpicklingError):  # It is cut.
            code = self._process.wait()
            raise sqlite3.OperationalError(
                f"the process that reads its rows ended early, with exit code {code}"
            ) from None
        if isinstance(found, str):
            raise sqlite3.OperationalError(found)
        assert isinstance(found, list)
        return found

    def fetch(self, num_rows: int) -> list[tuple[Any, ...]]:
        """The next rows, at most so many."""
        if not self._rows and not self._is_at_end:
            self._rows = self.next()
            self._is_at_end = not self._rows
        found, self._rows = self._rows[:num_rows], self._rows[num_rows:]
        return found
