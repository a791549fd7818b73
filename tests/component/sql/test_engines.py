"""Rows of each engine as shards, and what happens when an engine is gone."""

import os
import signal
from datetime import UTC, date, datetime

import psycopg
import pyarrow.parquet as pq
import pytest

from edl_horovod.errors import DataError
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.export import export
from tests import databases
from tests.programs import run_python

TYPES = {
    "sqlite": "i INTEGER, b BIGINT, x REAL, d DECIMAL(10, 2), s TEXT, y BLOB, day DATE,"
    " at DATETIME",
    "postgresql": "i INTEGER, b BIGINT, x REAL, d DECIMAL(10, 2), s TEXT, y BYTEA, day DATE,"
    " at TIMESTAMP",
    "mariadb": "i INTEGER, b BIGINT, x DOUBLE, d DECIMAL(10, 2), s TEXT, y BLOB, day DATE,"
    " at DATETIME(6)",
}
KINDS = ["integer", "integer", "number", "number", "text", "bytes", "date", "timestamp"]


@pytest.mark.parametrize("name", TYPES)
def test_values_arrive_as_they_are(request, name, tmp_path):
    database = request.getfixturevalue(name)
    database.run(
        f"CREATE TABLE t ({TYPES[name]})",
        "INSERT INTO t VALUES (1, 5000000000, 0.5, 1.25, 'größe %s :x', 'abc', '2026-01-31',"
        " '2026-01-31 12:30:00.5')",
    )
    if name == "sqlite":
        database.run("UPDATE t SET y = CAST(y AS BLOB)")
    with open_engine(database.url) as engine:
        table = export(engine, "SELECT * FROM t", tmp_path / "out", nulls={}, tell=print)
    assert [column.kind for column in table.columns] == KINDS
    (row,) = pq.read_table(table.data).to_pylist()
    assert row == {
        "i": 1,
        "b": 5_000_000_000,
        "x": 0.5,
        "d": 1.25,
        "s": "größe %s :x",
        "y": b"abc",
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, 30, 0, 500_000, tzinfo=UTC),
    }


def test_bits_are_whole_numbers(mariadb, tmp_path):
    mariadb.run(
        "CREATE TABLE t (flag BIT(1), mask BIT(12))",
        "INSERT INTO t VALUES (b'0', b'100000000001'), (NULL, b'10')",
    )
    assert mariadb.run("SELECT * FROM t") == [(0, 2049), (None, 2)]
    with open_engine(mariadb.url) as engine:
        table = export(engine, "SELECT * FROM t", tmp_path / "out", nulls={"flag": 1}, tell=print)
    assert [column.kind for column in table.columns] == ["integer", "integer"]
    assert pq.read_table(table.data).to_pylist()[1] == {"flag": 1, "mask": 2}


def test_timestamps_with_zones_and_booleans(postgresql, tmp_path):
    select = (
        "SELECT TIMESTAMPTZ '2026-01-31 12:00+02' AS at, true AS yes, i FROM"
        " generate_series(1, 5000) AS i"
    )
    with open_engine(postgresql.url) as engine:
        table = export(engine, select, tmp_path / "out", nulls={}, tell=print)
    assert [column.kind for column in table.columns] == ["timestamp", "boolean", "integer"]
    rows = pq.read_table(table.data).to_pylist()
    assert rows[0] == {"at": datetime(2026, 1, 31, 10, tzinfo=UTC), "yes": True, "i": 1}
    assert [row["i"] for row in rows] == list(range(1, 5001))


def test_rows_of_many_round_trips_are_in_order(postgresql, tmp_path):
    select = (
        "SELECT i, CASE WHEN i > 9000 THEN repeat('x', i % 50) ELSE '' END AS s, sqrt(i) AS x,"
        " nullif(i % 3, 0) AS n FROM generate_series(1, 12345) AS i"
    )
    with psycopg.connect(postgresql.url) as connection:
        rows = connection.execute(select).fetchall()
    with open_engine(postgresql.url) as engine:
        table = export(engine, select, tmp_path / "out", nulls={"n": 0}, tell=print)
    exported = [tuple(row.values()) for row in pq.read_table(table.data).to_pylist()]
    assert exported == [(*row[:3], row[3] or 0) for row in rows]
    assert table.columns[3].num_nulls == 12345 // 3


def test_an_array_is_refused(postgresql, tmp_path):
    with open_engine(postgresql.url) as engine, pytest.raises(DataError, match="list in"):
        export(engine, "SELECT ARRAY[1] AS a", tmp_path / "out", nulls={}, tell=print)


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_select_that_writes_is_refused(request, name, tmp_path):
    database = request.getfixturevalue(name)
    database.run("CREATE TABLE t (x INTEGER)")
    select = "WITH w AS (DELETE FROM t RETURNING x) SELECT x FROM w"
    if name == "mariadb":
        select = "INSERT INTO t VALUES (1) RETURNING x"
    with open_engine(database.url) as engine, pytest.raises(DataError):
        export(engine, select, tmp_path / "out", nulls={}, tell=print)
    assert database.run("SELECT * FROM t") == []


@pytest.mark.parametrize("is_temporary", [False, True])
def test_with_before_a_delete_writes_nothing_in_duckdb(tmp_path, is_temporary):
    select = "WITH w AS (SELECT 1 AS x) DELETE FROM t WHERE x IN (SELECT x FROM w)"
    with open_engine(f"duckdb:///{tmp_path}/some.duckdb") as engine:
        engine.execute(f"CREATE {'TEMPORARY' if is_temporary else ''} TABLE t AS SELECT 1 AS x")
        with pytest.raises(DataError):
            engine.select_columns(select)
        with pytest.raises(DataError):
            export(engine, select, tmp_path / "out", nulls={}, tell=print)
        assert engine.execute("SELECT * FROM t").rows == ((1,),)


def test_a_select_with_a_sequence_writes_nothing_in_duckdb(tmp_path):
    with open_engine(f"duckdb:///{tmp_path}/some.duckdb") as engine:
        engine.execute("CREATE SEQUENCE s")
        with pytest.raises(DataError, match="read-only"):
            engine.select_columns("SELECT nextval('s') AS x")
        assert engine.execute("SELECT nextval('s')").rows == ((1,),)


def test_files_of_duckdb(tmp_path):
    (tmp_path / "people.csv").write_text("name,age\nAnn,41\nBob,32\n")
    with open_engine("duckdb://") as engine:
        select = f"SELECT name, age, DATE '2026-01-31' AS day FROM '{tmp_path / 'people.csv'}'"
        table = export(engine, select, tmp_path / "out", nulls={}, tell=print)
    assert pq.read_table(table.data).to_pylist() == [
        {"name": "Ann", "age": 41, "day": date(2026, 1, 31)},
        {"name": "Bob", "age": 32, "day": date(2026, 1, 31)},
    ]


def test_a_connection_that_ends_leaves_nothing(postgresql, tmp_path):
    def end(*_):
        with psycopg.connect(postgresql.url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )

    select = "SELECT i, pg_sleep(0) IS NULL AS n FROM generate_series(1, 20000000) AS i"
    with open_engine(postgresql.url) as engine, pytest.raises(DataError) as error:
        export(engine, select, tmp_path / "out", nulls={}, tell=print, on_progress=end)
    assert "terminat" in str(error.value) or "closed" in str(error.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_wrong_password_is_not_shown(request, name):
    url = request.getfixturevalue(name).url.replace(databases.IN_URL, "falsch4711")
    with open_engine(url) as engine, pytest.raises(DataError) as error:
        engine.tables()
    assert "falsch4711" not in f"{error.value} {error.value.__cause__} {engine!r}"
    assert "127.0.0.1" in str(error.value)


def test_nobody_answers(tmp_path):
    with (
        open_engine("postgresql://ann:falsch4711@127.0.0.1:1/x") as engine,
        pytest.raises(DataError, match="refused") as error,
    ):
        engine.select_columns("SELECT 1")
    assert "falsch4711" not in str(error.value)


def test_ctrl_c_in_a_running_query(postgresql, tmp_path):
    def press(*_):
        os.kill(os.getpid(), signal.SIGINT)

    select = "SELECT i FROM generate_series(1, 20000000) AS i"
    with open_engine(postgresql.url) as engine, pytest.raises(KeyboardInterrupt):
        export(engine, select, tmp_path / "out", nulls={}, tell=print, on_progress=press)
    assert not any(tmp_path.iterdir())


@pytest.mark.long
def test_a_run_of_tests_ends_without_a_report_of_what_a_binding_left():
    test = f"{__file__}::{test_files_of_duckdb.__name__}"
    run = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", test, timeout=120)
    assert run.returncode == 0, run.stdout
    assert "leaked" not in run.stdout + run.stderr
