"""The rows of a SELECT as shards: sqlite, whose columns take any value."""

import contextlib
import resource
import sqlite3
import subprocess
import sys
import textwrap
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from edl_horovod.errors import ConfigError, DataError, OutputError
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.export import ExportedTable, export
from tests.programs import run_python

DAY = date(1970, 1, 3)
MINUTE = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


@pytest.fixture
def database(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "some.db")) as connection:
        yield connection


@pytest.fixture
def messages():
    return []


@pytest.fixture
def run(tmp_path, database, messages):
    def run(select: str, **nulls: object) -> ExportedTable:
        database.commit()
        with open_engine(f"sqlite:///{tmp_path / 'some.db'}") as engine:
            return export(engine, select, tmp_path / "out", nulls=nulls, tell=messages.append)

    return run


def rows_of(table: ExportedTable) -> list[dict]:
    return pq.read_table(table.data).to_pylist()


def test_values_decide_the_kinds(database, run):
    database.execute("CREATE TABLE t (n INT, x REAL, name TEXT, raw BLOB, day DATE, at TIMESTAMP)")
    database.execute(
        "INSERT INTO t VALUES (7, 1.5, 'Ann', x'00ff', '1970-01-03', '1970-01-01 00:01')"
    )
    table = run("SELECT * FROM t")
    assert rows_of(table) == [
        {"n": 7, "x": 1.5, "name": "Ann", "raw": b"\x00\xff", "day": DAY, "at": MINUTE}
    ]
    assert [(column.kind, column.declared_type) for column in table.columns] == [
        ("integer", "INT"),
        ("number", "REAL"),
        ("text", "TEXT"),
        ("bytes", "BLOB"),
        ("date", "DATE"),
        ("timestamp", "TIMESTAMP"),
    ]


def test_texts_of_several_files_become_dates_if_all_of_them_are(tmp_path, database):
    database.execute("CREATE TABLE t (v, day TEXT, other TEXT)")
    days = [f"2026-01-{1 + i % 28:02}" for i in range(30_000)]
    database.executemany("INSERT INTO t VALUES (1, ?, ?)", zip(days, days, strict=True))
    database.execute("INSERT INTO t VALUES (0.5, '2026-02-01', 'later')")
    database.commit()
    with open_engine(f"sqlite:///{tmp_path / 'some.db'}") as engine:
        dates = {"day": None, "other": None}
        select = "SELECT * FROM t ORDER BY rowid"
        table = export(engine, select, tmp_path / "out", nulls={}, tell=print, dates=dates)
    assert [column.kind for column in table.columns] == ["number", "date", "text"]
    assert len(list(table.data.iterdir())) > 1
    rows = rows_of(table)
    assert rows[0] == {"v": 1.0, "day": date(2026, 1, 1), "other": "2026-01-01"}
    assert rows[-1] == {"v": 0.5, "day": date(2026, 2, 1), "other": "later"}


def test_a_late_fraction_makes_all_rows_numbers(database, run):
    database.execute("CREATE TABLE t (i INTEGER, v)")
    count = 70_000
    database.executemany("INSERT INTO t VALUES (?, ?)", ((i, i) for i in range(count - 1)))
    database.execute("INSERT INTO t VALUES (?, 0.5)", (count - 1,))
    table = run("SELECT i, v FROM t ORDER BY i")
    assert table.columns[1].kind == "number"
    files = sorted(table.data.iterdir())
    assert len(files) > 1
    assert {str(pq.read_schema(file).field("v").type) for file in files} == {"double"}
    groups = [pq.ParquetFile(file).metadata for file in files]
    sizes = [file.row_group(i).num_rows for file in groups for i in range(file.num_row_groups)]
    assert max(sizes) <= 20_000
    rows = rows_of(table)
    assert [row["i"] for row in rows] == list(range(count))
    assert [row["v"] for row in rows] == [*range(count - 1), 0.5]


def test_a_mixed_column_names_rows_and_values(database, run, tmp_path):
    database.execute("CREATE TABLE t (age INT)")
    database.executemany("INSERT INTO t VALUES (?)", [(4,)] * 5_000 + [("unknown",)])
    with pytest.raises(DataError, match=r"'age'.* 1 .* 4, .* 5,001 .*'unknown'"):
        run("SELECT age FROM t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.db"]


def test_nulls_are_counted_for_each_column(database, run, tmp_path):
    database.execute("CREATE TABLE t (a INT, b TEXT, c INT)")
    values = [(1, "x", 1), (None, "y", 1), (3, None, 1), (None, "z", 1)]
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
    with pytest.raises(DataError, match=r"'a' in 2 of 4 .* 2; 'b' .* 1 .* 4 .* 3\."):
        run("SELECT * FROM t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.db"]


def test_defaults_stand_for_nulls(database, run):
    database.execute("CREATE TABLE t (a INT, b TEXT, d DATE, e INT)")
    values = [(None, None, None, None), (2, "x", "1970-01-02", None)]
    database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", reversed(values))
    table = run("SELECT * FROM t", a=0.5, b="-", d="1970-01-03", e=9)
    assert rows_of(table) == [
        {"a": 2.0, "b": "x", "d": date(1970, 1, 2), "e": 9},
        {"a": 0.5, "b": "-", "d": DAY, "e": 9},
    ]
    assert [column.num_nulls for column in table.columns] == [1, 1, 1, 2]


def test_a_default_stands_for_nulls_before_the_first_value(database, run):
    database.execute("CREATE TABLE t (a INT, d DATE)")
    database.executemany("INSERT INTO t VALUES (?, ?)", [(None, None)] * 200 + [(1, "1970-01-02")])
    table = run("SELECT * FROM t", a=0.5, d="1970-01-03")
    assert rows_of(table)[199:] == [{"a": 0.5, "d": DAY}, {"a": 1.0, "d": date(1970, 1, 2)}]


@pytest.mark.parametrize(
    ("nulls", "said"),
    [
        ({"a": "none"}, "'a' .* text"),
        ({"A": 1}, "'A'.*'a'"),
    ],
)
def test_a_default_that_does_not_fit_is_refused(database, run, nulls, said):
    database.execute("CREATE TABLE t (a INT)")
    database.executemany("INSERT INTO t VALUES (?)", [(1,), (None,)])
    with pytest.raises(ConfigError, match=said):
        run("SELECT a FROM t", **nulls)


def test_numbers_that_lose_digits_are_told(database, run, messages):
    database.execute("CREATE TABLE t (a REAL, b REAL, c INTEGER)")
    values = [(2.0**24, 1, 2**24 + 1), (2.0**25 + 1, 2.0**25, 1)]
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
    assert rows_of(run("SELECT * FROM t"))[1]["a"] == 2.0**25 + 1
    assert len(messages) == 1
    assert "'a' has 1 numbers" in messages[0]
    assert "33554433.0 in row 2" in messages[0]


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("SELECT a FROM t WHERE a > 5", "no rows"),
        ("SELECT a, b AS a FROM t", "one column 'a'"),
        ('SELECT a AS "" FROM t', "Column 1 .*no name"),
        ("SELECT x FROM t", "column: x"),
        ("SELECT a FROM t; SELECT 1", "one statement"),
        ("DELETE FROM t", "not run"),
        ("SELECT 9e999 AS a", "finite, .* 1"),
        ("SELECT CAST(x'ff' AS TEXT) AS a", "decode"),
        ("SELECT load_extension('x') AS a", "authorized"),
    ],
)
def test_a_select_that_gives_nothing_to_train_on(database, run, tmp_path, select, said):
    database.execute("CREATE TABLE t (a INT, b INT)")
    database.execute("INSERT INTO t VALUES (1, 2)")
    with pytest.raises(DataError, match=said):
        run(select)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.db"]
    assert database.execute("SELECT * FROM t").fetchall() == [(1, 2)]


@pytest.mark.parametrize(
    "name", ['a"b', "a;b", "größe", "select", "a.b", "a b", "%(x)s", ":x", "'"]
)
def test_names_of_columns_are_taken_as_they_are(database, run, name):
    quoted = '"' + name.replace('"', '""') + '"'
    database.execute(f"CREATE TABLE t ({quoted} INT)")
    database.execute("INSERT INTO t VALUES (1)")
    assert rows_of(run("SELECT * FROM t")) == [{name: 1}]


def test_the_select_runs_as_it_is(database, run):
    database.execute("CREATE TABLE t (a TEXT)")
    database.execute("INSERT INTO t VALUES (':x %s %(y)s')")
    select = "WITH w AS (SELECT a FROM t) SELECT a || ' -- :z' AS a FROM w WHERE a LIKE '%:x%' -- %"
    assert rows_of(run(select)) == [{"a": ":x %s %(y)s -- :z"}]


def test_a_folder_in_use_is_refused(database, run, tmp_path):
    database.execute("CREATE TABLE t AS SELECT 1 AS a")
    run("SELECT a FROM t")
    with pytest.raises(OutputError, match="earlier result"):
        run("SELECT a FROM t")
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputError):
        run("SELECT a FROM t")
    assert (tmp_path / "out" / "mine").exists()


def test_a_full_disk_leaves_nothing(database, run, tmp_path):
    database.execute("CREATE TABLE t AS SELECT 1 AS i")
    database.executemany("INSERT INTO t VALUES (?)", ((i * i,) for i in range(60_000)))
    database.commit()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OutputError, match="large"):
            run("SELECT i FROM t")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.db"]


EXPORTER = textwrap.dedent(
    """
    import re, sys
    from pathlib import Path
    from edl_horovod.sql.engine import open_engine
    from edl_horovod.sql.export import export

    def on_progress(num_rows, rate):
        print("progress", flush=True)

    with open_engine(sys.argv[1]) as engine:
        table = export(
            engine, sys.argv[2], Path(sys.argv[3]), nulls={}, tell=print, on_progress=on_progress
        )
    # The peak that getrusage knows is at least that of the process which began this one.
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(table.num_rows, peak[1])
    """
)


def peak_of(url: str, select: str, folder: Path, *, num_rows: int) -> int:
    """Run an exporter; returns its kilobytes."""
    done = run_python("-c", EXPORTER, url, select, folder, check=True, timeout=200)
    num_exported, kilobytes = map(int, done.stdout.split("\n")[-2].split())
    assert num_exported == num_rows
    return kilobytes


COUNT = "WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c LIMIT {}) "
MANY = COUNT + "SELECT i, i * 0.5 AS half, 'name ' || (i % 5000) AS name FROM c"
WIDE = COUNT + "SELECT i, randomblob(1000000) AS raw FROM c"


@pytest.mark.long
@pytest.mark.parametrize(
    ("select", "count"), [(MANY, 1_000_000), pytest.param(WIDE, 350, marks=pytest.mark.long)]
)
def test_many_rows_and_wide_rows_take_less_than_300_mb(sqlite, tmp_path, select, count):
    select = select.format(count)
    assert peak_of(sqlite.url, select, tmp_path / "out", num_rows=count) < 300_000


@pytest.mark.long
def test_wide_rows_of_a_server_take_less_than_360_mb(postgresql, tmp_path):
    select = "SELECT i, repeat(i::text, 400000) AS s FROM generate_series(100, 249) AS i"
    # Of these, 50 are pandas, which PyArrow imports where it is installed.
    assert peak_of(postgresql.url, select, tmp_path / "out", num_rows=150) < 360_000


@pytest.mark.long
def test_ctrl_c_leaves_nothing(sqlite, tmp_path):
    words = [sqlite.url, MANY.format(1_000_000_000), f"{tmp_path}/out"]
    command = [sys.executable, "-c", EXPORTER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"progress\n"
        process.send_signal(2)
        _, errors = process.communicate(timeout=30)
    assert errors.strip().endswith(b"KeyboardInterrupt")
    assert [path.name for path in tmp_path.iterdir()] == ["some.db"]
