"""A job's events as one table in a file, for people who look at them with pandas and the like."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edl_horovod.errors import ConfigError, MissingDependency, OutputError, hint_of, how_to_install
from edl_horovod.files import json_text
from edl_horovod.files.whole_file import write_bytes
from edl_horovod.job.events import Recorded, SummaryEvent, fields_of

SUFFIXES = (".csv", ".parquet")
"""The kinds of files that events can be written to."""
_Row = dict[str, Any]


def require_suffix(path: Path) -> None:
    """Refuse a file of another kind.

    Raises:
        ConfigError: Its name does not end in `.csv` or `.parquet`.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            "Events are written to a file whose name ends in .csv or .parquet.",
            received=f"--to={path}",
        )


def write(path: Path, events: Iterable[Recorded]) -> int:
    """Write a row for each event, with a column for each field that any of them has.

    `time` is in UTC. A field of named numbers, such as `metrics`, has a column for each name:
    `metrics.accuracy`. A list is JSON. Summaries, which repeat other events, have no row.

    Args:
        path: The file, which `require_suffix` has accepted; it appears whole or not at all.
        events: The events, oldest first.

    Returns:
        The number of rows.

    Raises:
        MissingDependency: PyArrow, which writes Parquet, is not installed.
        OutputError: The file cannot be written.
    """
    rows = [_row(it) for it in events if not isinstance(it.event, SummaryEvent)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    to_bytes = _parquet if path.suffix == ".parquet" else _csv
    try:
        write_bytes(path, [to_bytes(rows, names)])
    except OSError as error:
        raise OutputError(
            f"The events cannot be written: {error}.",
            received={"--to": path},
            hint=hint_of(error),
        ) from error
    return len(rows)


def _row(recorded: Recorded) -> _Row:
    time, source, event = recorded
    row: _Row = {"time": datetime.fromtimestamp(time, UTC), "source": source, "kind": event.kind}
    for name, value in fields_of(event).items():
        row |= _columns(name, value)
    return row


def _columns(name: str, value: Any) -> _Row:
    if not isinstance(value, Mapping):
        return {name: json_text.dumps(value) if isinstance(value, list | tuple) else value}
    row: _Row = {}
    for key, part in value.items():
        row |= _columns(f"{name}.{key}", part)
    return row


def _csv(rows: list[_Row], names: list[str]) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "time": row["time"].isoformat(timespec="microseconds")})
    return stream.getvalue().encode(errors="backslashreplace")


def _parquet(rows: list[_Row], names: list[str]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency(
            f"Parquet needs PyArrow: {error}.",
            hint=f"To have it, {how_to_install('arrow')}, or write a .csv file.",
        ) from error
    columns = {name: _column(pyarrow, [row.get(name) for row in rows]) for name in names}
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


def _column(pyarrow: Any, values: list[Any]) -> Any:
    try:
        return pyarrow.array(values)
    # Events of two kinds may have fields of one name, and texts what UTF-8 cannot encode.
    except (pyarrow.ArrowException, UnicodeEncodeError):
        return pyarrow.array([None if it is None else json.dumps(it) for it in values])
