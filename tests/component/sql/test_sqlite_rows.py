"""A SELECT on a file of SQLite, which a process of its own runs."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.errors import DataError
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.export import export
from tests.sql_service import children_of
from tests.waiting import is_running, wait_until

KINDS = {int: "integer", float: "number", str: "text", bytes: "bytes"}
ENDLESS = "WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c) SELECT i FROM c"
READER = """
import sys
from edl_horovod.sql.engine import open_engine

with open_engine(sys.argv[1]) as engine:
    engine.select_columns(sys.argv[2])
"""

VALUES = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
)
COUNTS = st.sampled_from([1, 7, 8, 9, 491, 500, 1_100])
"""Around the sizes of batches."""


def kind_of(values: list) -> str | None:
    """None if the kinds do not go together, or all are NULL."""
    kinds = {KINDS[type(value)] for value in values if value is not None}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(runs=st.lists(st.tuples(VALUES, COUNTS), min_size=1, max_size=4))
def test_any_values_are_the_same_in_the_files_or_an_error_that_names_them(runs):
    values = [value for value, count in runs for _ in range(count)]
    with tempfile.TemporaryDirectory() as name:
        path, out = Path(name, "some.db"), Path(name, "out")
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE t (v)")
            database.executemany("INSERT INTO t VALUES (?)", ((value,) for value in values))
        with open_engine(f"sqlite:///{path}") as engine:
            try:
                table = export(engine, "SELECT v FROM t", out, nulls={}, tell=print)
            except DataError as e:
                check_error(str(e), values)
                return
        (column,) = table.columns
        assert column.kind == kind_of(values)
        exported = [row["v"] for row in pq.read_table(table.data).to_pylist()]
        assert exported == values
        wanted = float if column.kind == "number" else type(values[0])
        assert {type(value) for value in exported} == {wanted}


def check_error(said: str, values: list) -> None:
    if "returns NULL" in said:
        count, first = values.count(None), values.index(None) + 1
        assert count
        assert f" {count:,} of {len(values):,} rows, first in row {first:,}." in said
        return
    rows = re.search(r"row ([\d,]+) has .*, row ([\d,]+) has ", said, re.DOTALL)
    assert rows is not None
    assert "different kinds" in said
    assert kind_of([values[int(row.replace(",", "")) - 1] for row in rows.groups()]) is None


def test_whole_numbers_beside_fractions_are_numbers_of_64_bits(sqlite, tmp_path):
    sqlite.run("CREATE TABLE t (v)")
    with contextlib.closing(sqlite3.connect(tmp_path / "some.db")) as database, database:
        rows = [0.5] * 1_000 + [2**53, 2**53 + 1]
        database.executemany("INSERT INTO t VALUES (?)", ((value,) for value in rows))
    with open_engine(sqlite.url) as engine:
        table = export(engine, "SELECT v FROM t", tmp_path / "out", nulls={}, tell=print)
    values = [
        value
        for file in sorted(table.data.glob("*.parquet"))
        for value in pq.read_table(file)["v"].to_pylist()
    ]
    assert values == list(map(float, rows))


def test_functions_are_those_of_other_statements(sqlite):
    select = "SELECT floor(-1.5) AS a, 'Ann' REGEXP '^A' AS b, NULL REGEXP 'x' AS c"
    (row,) = sqlite.run(select)
    with open_engine(sqlite.url) as engine, engine.reading(select) as rows:
        assert rows.fetch(5) == [row]


def test_no_more_rows_than_asked_for_and_none_after_the_last(sqlite):
    select = ENDLESS + " LIMIT 1100"
    with open_engine(sqlite.url) as engine, engine.reading(select) as rows:
        batches = [rows.fetch(3) for _ in range(500)]
    assert {len(batch) for batch in batches[:366]} <= {1, 2, 3}
    assert [row[0] for batch in batches for row in batch] == list(range(1_100))
    assert batches[-1] == []


def test_a_reader_that_is_killed_is_an_error(sqlite, tmp_path):
    before = set(children_of(os.getpid()))

    def kill(*_):
        for process in set(children_of(os.getpid())) - before:
            os.kill(process, signal.SIGKILL)

    with (
        open_engine(sqlite.url) as engine,
        pytest.raises(DataError, match="-9"),
    ):
        export(engine, ENDLESS, tmp_path / "out", nulls={}, tell=print, on_progress=kill)
    assert [path.name for path in tmp_path.iterdir()] == ["some.db"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_reader_ends_with_its_command(sqlite, number):
    # It gives no row, so the reader writes nothing and cannot notice by its pipe.
    select = f"SELECT max(i) AS i FROM ({ENDLESS})"
    command = [sys.executable, "-c", READER, sqlite.url, select]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: children_of(process.pid), "the reader's start")
        (reader,) = children_of(process.pid)
        process.send_signal(number)
        process.wait(timeout=30)
    wait_until(lambda: not is_running(reader), "the reader's end")
