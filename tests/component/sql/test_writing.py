"""Predictions in tables: by key, whole or not at all, and never in a row that has changed."""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import sqlalchemy as sa

from edl_horovod.errors import ConfigError, DataError, Interrupted
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.export import export
from edl_horovod.sql.target import plan_target
from edl_horovod.sql.writing import try_writing, write_predictions
from tests.databases import Database

REFERENCE = "SELECT name, role FROM testdata"
TARGET = ("testdata", "predicted_salary")
MOODS = ("'sad'", "'ok'")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def people(request):
    database = request.getfixturevalue(request.param)
    database.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name VARCHAR(20), role VARCHAR(20))",
        "INSERT INTO testdata VALUES (1, 'Ann', 'a'), (2, 'Bob', 'b'), (5, 'Cyd', 'b')",
    )
    return database


@pytest.fixture
def messages():
    return []


def exported(engine, folder, select, target=TARGET, *, nulls=None, tell=print, **how):
    """The plan of a target, and the rows of its SELECT in a folder."""
    plan = plan_target(engine, select, target, **how)
    return plan, export(engine, plan.select, folder, nulls=nulls or {}, tell=tell, target=plan)


@pytest.fixture
def predict(tmp_path, messages):
    """Predict 10 for the first row of a SELECT, 20 for the next..., after statements of others.

    On a database, or in a session of its engine.
    """
    numbers = itertools.count()

    def predict(database, select, target, *statements, values=None, **how):
        is_database = isinstance(database, Database)
        session = open_engine(database.url) if is_database else contextlib.nullcontext(database)
        with session as engine:
            folder = tmp_path / f"out-{next(numbers)}"
            plan, table = exported(engine, folder, select, target, tell=messages.append, **how)
            for statement in statements:
                database.run(statement)
            if values is None:
                values = [(10.0 * row,) * len(plan.columns) for row in range(1, table.num_rows + 1)]
            return write_predictions(engine, plan, table, values, tell=messages.append)

    return predict


def test_the_rows_of_a_source_get_a_column(people, predict, messages):
    written = predict(people, REFERENCE + " WHERE name <> 'Bob' ORDER BY name DESC", TARGET)
    assert (written.num_rows, written.num_changed, written.num_gone) == (2, 0, 0)
    assert people.run("SELECT * FROM testdata ORDER BY id") == [
        (1, "Ann", "a", 20.0),
        (2, "Bob", "b", None),
        (5, "Cyd", "b", 10.0),
    ]
    assert people.schema() == {"testdata": ["id", "name", "role", "predicted_salary"]}
    assert not messages


@pytest.mark.long(after=1)
def test_values_of_others_are_replaced_only_if_asked_to(people, predict):
    people.run(
        "ALTER TABLE testdata ADD COLUMN score REAL", "UPDATE testdata SET score = 1 WHERE id > 1"
    )
    contents = "SELECT id, score FROM testdata ORDER BY id"
    before = people.run(contents)
    score = ("testdata", "score")
    with pytest.raises(DataError, match=r"\b2 .*replace_values"):
        predict(people, REFERENCE, score)
    with pytest.raises(DataError, match=r"1 values .*score"):
        predict(people, REFERENCE + " WHERE id < 3", score, replace_table=True)
    assert people.run(contents) == before
    predict(people, REFERENCE + " WHERE id > 1", score, replace_values=True)
    assert people.run(contents) == [(1, None), (2, 10), (5, 20)]


@pytest.mark.long(after=1)
def test_values_of_another_table_whose_keys_coincide_are_not_replaced(people, predict):
    people.run(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)",
        "INSERT INTO orders VALUES (1, 7), (2, NULL), (3, 9)",
    )
    before = people.run("SELECT * FROM orders ORDER BY id")
    select, total = "SELECT id, role FROM testdata ORDER BY id", ("orders", "total")
    with pytest.raises(DataError, match=r"1 values .*total"):
        predict(people, select, total)
    assert people.run("SELECT * FROM orders ORDER BY id") == before
    predict(people, select + " LIMIT 5", total, replace_values=True)
    assert people.run("SELECT * FROM orders ORDER BY id") == [(1, 10), (2, 20), (3, 9)]


@pytest.mark.long(after=1)
def test_an_empty_column_is_filled_and_then_holds_values(people, predict):
    people.run("ALTER TABLE testdata ADD COLUMN score REAL")
    score = ("testdata", "score")
    predict(people, REFERENCE + " WHERE id > 1", score)
    predict(people, REFERENCE + " WHERE score IS NULL", score)
    assert people.run("SELECT id, score FROM testdata ORDER BY id") == [(1, 10), (2, 10), (5, 20)]
    with pytest.raises(DataError, match=r"3 values .*score"):
        predict(people, REFERENCE, score)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("is_there", [True, False], ids=["in a column", "with its column"])
def test_a_value_that_comes_in_meanwhile_stays(people, predict, is_there):
    add = "ALTER TABLE testdata ADD COLUMN score REAL"
    changes = ["UPDATE testdata SET score = 7 WHERE id = 2"]
    if is_there:
        people.run(add)
    else:
        changes.insert(0, add)
    written = predict(people, REFERENCE + " ORDER BY id", ("testdata", "score"), *changes)
    assert (written.num_rows, written.num_changed) == (2, 1)
    assert people.run("SELECT id, score FROM testdata ORDER BY id") == [(1, 10), (2, 7), (5, 30)]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "select", ["SELECT *", "SELECT predicted_salary, name, id", "SELECT name, role"]
)
def test_a_statement_that_runs_each_night_renews_its_column(people, predict, messages, select):
    predict(people, "SELECT * FROM testdata ORDER BY id", TARGET)
    people.run("INSERT INTO testdata (id, name, role) VALUES (7, 'Eve', 'a')")
    written = predict(people, f"{select} FROM testdata ORDER BY id DESC", TARGET)
    assert (written.num_rows, written.num_changed) == (4, 0)
    rows = people.run("SELECT id, predicted_salary FROM testdata ORDER BY id")
    assert rows == [(1, 40), (2, 30), (5, 20), (7, 10)]
    assert not messages


@dataclasses.dataclass(frozen=True)
class Narrow:
    """A column that cannot hold some predictions."""

    type: str
    sample: object
    engines: str = "postgresql mariadb"


NARROW = (
    Narrow("INTEGER", 0.37),
    Narrow("NUMERIC(4,1)", 0.37),
    Narrow("DATE", 0.37),
    Narrow("VARCHAR(3)", "clerk"),
    Narrow("INTEGER", "clerk"),
    Narrow("REAL GENERATED ALWAYS AS (id * 2.0) STORED", 0.37, "postgresql mariadb sqlite"),
)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("people", "case"),
    [
        pytest.param(engine, case, id=f"{engine} {case.type} {case.sample}")
        for case in NARROW
        for engine in case.engines.split()
    ],
    indirect=["people"],
)
def test_a_column_that_cannot_hold_predictions_is_refused(people, case):
    type_ = case.type
    people.run("DROP TABLE testdata")
    people.run(
        f"CREATE TABLE testdata (id INTEGER PRIMARY KEY, role VARCHAR(9), score {type_})",
        "INSERT INTO testdata (id, role) VALUES (1, 'a')",
    )
    before = people.schema()
    with open_engine(people.url) as engine, pytest.raises(DataError, match=r"Predictions|hold"):
        plan_target(
            engine,
            "SELECT role FROM testdata",
            ("testdata", "score"),
            samples=[("a", case.sample) if isinstance(case.sample, str) else (case.sample,)],
            replace_values=True,
        )
    assert people.schema() == before


@pytest.mark.long(after=1)
@pytest.mark.parametrize("type_", ["REAL", "FLOAT", "DOUBLE PRECISION", "VARCHAR(30)"])
def test_a_column_that_can_hold_predictions_is_filled(people, predict, type_):
    people.run(f"ALTER TABLE testdata ADD COLUMN score {type_}")
    predict(people, REFERENCE, ("testdata", "score"))
    scores = people.run("SELECT score FROM testdata ORDER BY id")
    assert [float(score) for (score,) in scores] == [10, 20, 30]


def test_strict_tables_refuse_and_take_what_their_types_say(sqlite, predict):
    sqlite.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, role TEXT, whole INTEGER) STRICT",
        "INSERT INTO testdata VALUES (1, 'a', NULL)",
    )
    select = "SELECT role FROM testdata"
    with pytest.raises(DataError, match="be refused"):
        predict(sqlite, select, ("testdata", "whole"))
    predict(sqlite, select, ("testdata", "score"))
    assert sqlite.run("SELECT id, score FROM testdata") == [(1, 10.0)]


def test_a_table_of_an_attached_file_is_another_table(sqlite, predict, tmp_path):
    (tmp_path / "other.db").touch()
    select, target = "SELECT * FROM other.t", ("other", "t", "p")
    with open_engine(sqlite.url) as engine:
        engine.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)")
        engine.execute("INSERT INTO t VALUES (1, 2)")
        engine.execute(f"ATTACH '{tmp_path / 'other.db'}' AS other")
        engine.execute("CREATE TABLE other.t (id INTEGER PRIMARY KEY, x INTEGER, p REAL)")
        engine.execute("INSERT INTO other.t VALUES (1, 2, 3)")
        predict(engine, "SELECT * FROM t", ("t", "p"))
        with pytest.raises(DataError, match="1 values of p"):
            plan_target(engine, select, target)
        engine.execute("ALTER TABLE other.t DROP COLUMN p")
        for _ in range(2):
            predict(engine, select, target, values=[(20.0,)])
        assert engine.execute("SELECT p FROM other.t").rows == ((20.0,),)


@pytest.mark.long(after=1)
def test_a_table_that_predict_made_is_renewed(people, predict):
    predict(people, "SELECT id, role FROM testdata", ("scores", "score"))
    people.run("ALTER TABLE scores ADD COLUMN note VARCHAR(9)")
    if not people.url.startswith("sqlite"):  # There the number of a row is a key.
        people.run("ALTER TABLE scores ADD PRIMARY KEY (id)")
    predict(people, "SELECT id, role FROM scores WHERE id = 5", ("scores", "score"))
    assert people.run("SELECT score, note FROM scores WHERE id = 5") == [(10.0, None)]


def test_a_key_of_0_is_a_key(people, predict):
    people.run("UPDATE testdata SET id = 0 WHERE id = 2")
    predict(people, REFERENCE + " ORDER BY id", TARGET)
    rows = people.run("SELECT id, predicted_salary FROM testdata ORDER BY id")
    assert rows == [(0, 10.0), (1, 20.0), (5, 30.0)]


def test_rows_that_changed_meanwhile_are_told(people, predict, messages):
    written = predict(
        people,
        REFERENCE,
        TARGET,
        "UPDATE testdata SET role = 'c' WHERE id = 1",
        "DELETE FROM testdata WHERE id = 5",
        "INSERT INTO testdata VALUES (6, 'Cyd', 'b')",
    )
    assert (written.num_rows, written.num_changed, written.num_gone) == (1, 1, 1)
    assert people.run("SELECT * FROM testdata ORDER BY id") == [
        (1, "Ann", "c", None),
        (2, "Bob", "b", 20.0),
        (6, "Cyd", "b", None),
    ]
    (message,) = messages
    assert re.findall(r"\d+|testdata", message) == ["1", "testdata", "1"]


@pytest.mark.long(after=1)
def test_a_select_that_gives_other_values_each_time_writes_nothing(people, predict, messages):
    number = "rand()" if people.url.startswith("mariadb") else "random()"
    before = people.schema()
    for statements in ((), ("DELETE FROM testdata WHERE id = 5",)):
        with pytest.raises(DataError, match=r"random\(\)"):
            predict(people, f"SELECT name, {number} AS x FROM testdata", TARGET, *statements)
    with pytest.raises(DataError, match="2 rows"):
        predict(people, REFERENCE, TARGET, "UPDATE testdata SET role = 'c'")
    assert people.schema() == before
    assert not messages


def test_a_row_number_of_another_row_is_noticed(sqlite, predict, messages):
    sqlite.run(
        "CREATE TABLE testdata (name TEXT, role TEXT)",
        "INSERT INTO testdata VALUES ('Ann', 'a'), ('Bob', 'b')",
    )
    delete = "DELETE FROM testdata WHERE name = 'Bob'"
    again = "INSERT INTO testdata VALUES ('Dan', 'd')"  # It takes the number that was Bob's.
    written = predict(sqlite, REFERENCE, TARGET, delete, again)
    assert (written.num_rows, written.num_changed) == (1, 1)
    assert sqlite.run("SELECT * FROM testdata") == [("Ann", "a", 10.0), ("Dan", "d", None)]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "select",
    [
        "SELECT upper(t.name) AS name, -- FROM nowhere\n t.role FROM testdata AS t LIMIT 10",
        "SELECT t.*, 2 * id AS twice FROM testdata AS t",
    ],
)
def test_expressions_aliases_and_stars_are_matched(people, predict, select):
    assert predict(people, select, TARGET).num_rows == 3


def test_stars_and_row_numbers_stay_those_of_the_table(sqlite, predict):
    sqlite.run(
        "CREATE TABLE testdata (name TEXT, role TEXT)",
        "INSERT INTO testdata VALUES ('Ann', 'a'), ('Bob', 'b')",
    )
    select = "SELECT 2 * rowid AS x, *, rowid * 3 AS y FROM testdata AS t"
    assert predict(sqlite, select, TARGET).num_rows == 2


@pytest.mark.long
@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY,", "id NUMERIC(9) PRIMARY KEY,", ""])
def test_the_time_of_writing_grows_with_the_rows_alone(sqlite, predict, key):
    sqlite.run(
        f"CREATE TABLE testdata ({key} role INTEGER)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)"
        f" INSERT INTO testdata SELECT {'i, ' if key else ''} i % 7 FROM n",
    )
    began = time.process_time()
    assert predict(sqlite, "SELECT role FROM testdata", TARGET).num_rows == 50_000
    # With a scan of all rows for each one it took more than a minute.
    assert time.process_time() - began < 15


def test_the_progress_of_writing_is_told_and_may_end_it(sqlite, tmp_path):
    sqlite.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, role INTEGER)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
        " INSERT INTO testdata SELECT i, i % 7 FROM n",
    )
    before = sqlite.schema()

    def slow_predictions():
        for number in range(3000):
            if not number % 1000:
                time.sleep(0.55)
            yield (float(number),)

    def end(num_rows, rate):
        if num_rows > 1000:
            raise Interrupted("Enough.")

    with open_engine(sqlite.url) as engine:
        rows = exported(engine, tmp_path / "out", "SELECT role FROM testdata")
        write = functools.partial(write_predictions, engine, *rows, tell=print)
        with pytest.raises(Interrupted):
            write(slow_predictions(), on_progress=end)
        assert sqlite.schema() == before
        reported = []
        write(slow_predictions(), on_progress=lambda num_rows, rate: reported.append(num_rows))
    assert reported[0] < reported[-1] == 3000


def test_a_new_table_has_what_was_selected(people, predict):
    predict(people, "SELECT role, id FROM testdata ORDER BY id DESC", ("scores", "score"))
    assert people.run("SELECT * FROM scores") == [("b", 5, 10), ("b", 2, 20), ("a", 1, 30)]
    assert people.schema()["testdata"] == ["id", "name", "role"]


def test_a_new_table_keeps_all_digits_of_the_users_columns(people, predict):
    is_sqlite = people.url.startswith("sqlite")
    whole, many = 2**62 + 1, "INTEGER" if is_sqlite else "NUMERIC(30,0)"
    large = whole if is_sqlite else 123456789012345678901234567891
    people.run(
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, many {many}, whole BIGINT, share NUMERIC(8,3))",
        f"INSERT INTO t VALUES (1, {large}, {whole}, 0.125), (2, 7, -{whole}, 3)",
    )
    predict(people, "SELECT many, whole, share FROM t ORDER BY id", ("scores", "score"))
    rows = people.run("SELECT * FROM scores ORDER BY score")
    assert [tuple(map(type, row)) for row in rows] == [
        (*map(type, row), float)
        for row in people.run("SELECT many, whole, share FROM t ORDER BY id")
    ]
    assert rows == [(large, whole, 0.125, 10.0), (7, -whole, 3, 20.0)]


def test_a_new_table_keeps_the_zones_of_timestamps(postgresql, predict):
    postgresql.run(
        "CREATE TABLE t (id INTEGER, at TIMESTAMPTZ(3), plain TIMESTAMP)",
        "INSERT INTO t VALUES (1, '2026-01-31 12:00+02', '2026-01-31 12:00')",
    )
    predict(postgresql, "SELECT id, at, plain FROM t ORDER BY id", ("scores", "score"))
    # In another zone a timestamp without one would be another time.
    same = "SET timezone TO 'Asia/Tokyo'", "SELECT id, at, plain FROM scores EXCEPT SELECT * FROM t"
    assert postgresql.run(*same) == []
    assert postgresql.run("SELECT pg_typeof(at)::text FROM scores")[0] == (
        "timestamp with time zone",
    )


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_new_table_takes_no_decimals_that_are_not_finite(postgresql, predict, value):
    select = f"SELECT x FROM (VALUES (1.25), (CAST('{value}' AS NUMERIC))) AS t(x)"
    with pytest.raises(DataError, match=r"'x' .*finite.* 2"):
        predict(postgresql, select, ("scores", "score"))


@pytest.mark.parametrize("num_whole", [1, 6000])  # More are not in the first block of rows.
def test_whole_numbers_among_fractions_keep_their_digits(sqlite, predict, num_whole):
    sqlite.run(
        "CREATE TABLE t (x)",
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {num_whole})"
        f" INSERT INTO t SELECT {2**53} + i FROM n",
        "INSERT INTO t VALUES (0.5)",
    )
    predict(sqlite, "SELECT x FROM t ORDER BY rowid", ("scores", "score"))
    rows = sqlite.run("SELECT x FROM scores")
    assert rows[:1] + rows[-1:] == [(2**53 + 1,), (0.5,)]


def test_predictions_that_are_no_numbers_are_told(people, predict, messages):
    values = [(1.0,), (math.nan,), (math.inf,)]
    predict(people, REFERENCE + " ORDER BY id", TARGET, values=values)
    written = [row[0] for row in people.run("SELECT predicted_salary FROM testdata ORDER BY id")]
    storable = {"sqlite": [1.0, None, math.inf], "mariadb": [1.0, None, None]}
    if (expected := storable.get(people.url.partition(":")[0])) is None:
        assert math.isnan(written[1])
        assert (written[2], messages) == (math.inf, [])
    else:
        assert written == expected
        assert messages[0].startswith(f"{expected.count(None)} rows ")


def test_a_table_with_the_key_of_the_rows_is_updated(people, predict, messages):
    people.run(
        "CREATE TABLE scores (id INTEGER PRIMARY KEY)", "INSERT INTO scores VALUES (1), (2), (3)"
    )
    written = predict(people, "SELECT id, role FROM testdata", ("scores",))
    assert (written.num_rows, written.num_gone) == (2, 1)
    assert people.run("SELECT * FROM scores ORDER BY id") == [(1, 10.0), (2, 20.0), (3, None)]
    assert len(messages) == 1


@pytest.mark.long(after=1)
def test_another_table_is_dropped_only_if_asked_to(people, predict):
    people.run("CREATE TABLE other (x INTEGER)", "INSERT INTO other VALUES (1), (2)")
    for permission in ({}, {"replace_values": True}):
        with pytest.raises(DataError, match=r"\b2 .*replace_table"):
            predict(people, REFERENCE, ("other",), **permission)
    if people.url.startswith("mariadb"):
        with pytest.raises(DataError, match="DROP"):
            predict(people, REFERENCE, ("other",), replace_table=True)
        return
    predict(people, REFERENCE, ("other",), replace_table=True, columns=["a", "b"])
    assert people.schema()["other"] == ["name", "role", "a", "b"]


def test_a_new_table_keeps_what_is_null(people, predict):
    people.run("UPDATE testdata SET role = NULL WHERE id = 2")
    predict(people, REFERENCE + " ORDER BY id", ("scores",), nulls={"role": "-"})
    assert people.run("SELECT role FROM scores") == [("a",), (None,), ("b",)]


UNMATCHED = [
    ("SELECT DISTINCT role FROM testdata", TARGET, "DISTINCT"),
    ("SELECT role, count(*) AS n FROM testdata GROUP BY role", TARGET, "GROUP BY"),
    ("SELECT max(role) AS role FROM testdata", TARGET, "sums up"),
    (
        "SELECT a.name FROM testdata AS a JOIN testdata AS b ON a.id = b.id",
        TARGET,
        "one table",
    ),
    ("SELECT name FROM (SELECT name FROM testdata) AS x", TARGET, "plain table"),
    ("WITH x AS (SELECT name FROM testdata) SELECT name FROM x", TARGET, "a WITH"),
    ("SELECT name, role FROM who", ("who", "x"), "a view"),
    ("SELECT x FROM other WHERE x IN (SELECT id FROM testdata)", TARGET, "of other"),
    ("SELECT name FROM who", ("other",), "view who,.* other"),
    (  # The name of the target is that of a WITH clause, too.
        "SELECT n.x FROM (WITH other AS (SELECT 1 AS x) SELECT x FROM other) AS n, other",
        ("other",),
        "reads other",
    ),
]


@pytest.mark.long(after=1)
def test_rows_that_cannot_be_matched_are_refused(people):
    people.run("CREATE TABLE other (x INTEGER)", "CREATE VIEW who AS SELECT * FROM testdata")
    with open_engine(people.url) as engine:
        for select, target, why in UNMATCHED:
            with pytest.raises(DataError, match=why):
                plan_target(engine, select, target, replace_table=True)


IN_THE_WAY = [
    (REFERENCE, ("testdata", "role"), "read .*'role'"),
    ("SELECT upper(role) AS r FROM testdata", ("testdata", "role"), "read .*'role'"),
    (REFERENCE, ("testdata", "ID"), "'id'.* key"),
    ("SELECT * FROM testdata", ("testdata", "name"), "read .*'name'"),
    (REFERENCE, ("scores", "role"), "'role'.* model"),
    (REFERENCE, ("a", "b", "c", "d"), "a table"),
]


def test_columns_that_are_in_the_way_are_refused(people):
    with open_engine(people.url) as engine:
        for select, target, why in IN_THE_WAY:
            with pytest.raises(ConfigError, match=why):
                plan_target(engine, select, target, features=("name", "role"))


def test_a_table_without_a_key_is_refused(postgresql):
    postgresql.run("CREATE TABLE testdata (name TEXT, role TEXT)")
    with open_engine(postgresql.url) as engine, pytest.raises(DataError, match="primary key"):
        plan_target(engine, REFERENCE, TARGET)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "name", ['a"b', "a;b", "größe", "select", "a.b", "a b", "%(x)s", ":x", "'"]
)
def test_names_are_quoted(database, predict, name):
    quoted = '"' + name.replace('"', '""') + '"'
    database.run(
        f"CREATE TABLE {quoted} ({quoted} INTEGER PRIMARY KEY, name TEXT)",
        f"INSERT INTO {quoted} VALUES (1, 'Ann'), (2, 'Bob')",
    )
    predict(database, f"SELECT name FROM {quoted} ORDER BY {quoted}", (name, name + "2"))
    assert database.run(f"SELECT * FROM {quoted} ORDER BY 1") == [(1, "Ann", 10), (2, "Bob", 20)]
    assert database.schema() == {name: [name, "name", name + "2"]}


def test_a_name_without_quotes_is_the_table_that_postgresql_reads(postgresql, predict):
    for table in ("emp", '"Emp"'):
        postgresql.run(
            f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT)",
            f"INSERT INTO {table} VALUES (1, 'Ann')",
        )
    predict(postgresql, "SELECT name FROM Emp", ("emp", "score"))
    predict(postgresql, 'SELECT name FROM "Emp"', ("Emp", "other"))
    assert postgresql.schema() == {"Emp": ["id", "name", "other"], "emp": ["id", "name", "score"]}
    with pytest.raises(DataError, match=r"exists|rows"):
        predict(postgresql, "SELECT name FROM Emp", ("Emp", "score"))


SEVERAL = "u UUID, d DATE, b BYTEA, PRIMARY KEY (u, d, b)"
UUID = "'00000000-0000-0000-0000-000000000001'"


@pytest.mark.parametrize(
    ("people", "before", "columns", "keys"),
    [
        ("postgresql", "CREATE TYPE mood AS ENUM ('sad', 'ok')", "m mood PRIMARY KEY", MOODS),
        (
            "postgresql",
            "CREATE DOMAIN word AS text CHECK (value <> '')",
            "m word PRIMARY KEY",
            MOODS,
        ),
        ("mariadb", "DROP TABLE testdata", "m ENUM('sad', 'ok') PRIMARY KEY", MOODS),
        ("postgresql", "", SEVERAL, (f"{UUID}, '2026-01-01', 'x'", f"{UUID}, '2026-01-02', 'x'")),
    ],
    indirect=["people"],
)
def test_keys_of_named_types_and_of_several_columns(people, predict, before, columns, keys):
    people.run(
        *filter(None, [before]),
        f"CREATE TABLE t (x INTEGER, {columns})",
        f"INSERT INTO t VALUES (1, {keys[0]}), (2, {keys[1]})",
    )
    assert predict(people, "SELECT x FROM t ORDER BY x", ("t", "y")).num_rows == 2
    assert people.run("SELECT x, y FROM t ORDER BY x") == [(1, 10.0), (2, 20.0)]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "select", ["SELECT *", "SELECT *, 2 * id AS note", "SELECT testdata.*, 3 AS predicted_salary"]
)
def test_a_column_that_a_star_gives_since_then_is_not_compared(people, predict, messages, select):
    add = "ALTER TABLE testdata ADD COLUMN note VARCHAR(9)"
    written = predict(people, f"{select} FROM testdata ORDER BY id", TARGET, add)
    assert (written.num_rows, written.num_changed) == (3, 0)
    assert people.run("SELECT predicted_salary FROM testdata ORDER BY id") == [(10,), (20,), (30,)]
    assert not messages


@pytest.mark.parametrize(
    ("select", "target", "action"),
    [
        (REFERENCE, ("testdata", "score"), "update"),
        (REFERENCE, ("scores",), "create"),
        (REFERENCE, ("other",), "replace"),
    ],
)
def test_what_is_tried_leaves_nothing(database, select, target, action):
    database.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name TEXT, role TEXT)",
        "CREATE TABLE other (x INTEGER)",
        "INSERT INTO other VALUES (7)",
    )
    before = database.schema()
    with open_engine(database.url) as engine:
        plan = plan_target(engine, select, target, replace_table=True)
        assert plan.action == action
        try_writing(engine, plan)
    assert database.schema() == before
    assert database.run("SELECT * FROM other") == [(7,)]


@pytest.mark.parametrize(
    ("people", "target", "lock"),
    [
        ("postgresql", TARGET, "LOCK TABLE testdata IN SHARE MODE"),
        ("postgresql", ("other",), "LOCK TABLE other IN SHARE MODE"),
        ("mariadb", TARGET, "SELECT * FROM testdata"),
        ("mariadb", ("testdata", "score"), "SELECT * FROM testdata FOR UPDATE"),
    ],
    indirect=["people"],
)
def test_a_lock_of_others_is_not_waited_for_without_end(people, predict, monkeypatch, target, lock):
    people.run("CREATE TABLE other (x INTEGER)", "ALTER TABLE testdata ADD COLUMN score REAL")
    monkeypatch.setattr("edl_horovod.sql.writing.LOCK_SECONDS", 1)
    with (
        open_engine(people.url) as other,
        other.connecting() as connection,
        other.transaction(connection),
    ):
        connection.exec_driver_sql(lock)
        with pytest.raises(DataError, match=r"(?i)lock"):
            predict(people, REFERENCE, target, replace_table=True)


@pytest.mark.parametrize(
    ("people", "setting"),
    [
        ("postgresql", "SET lock_timeout = '7s'; SHOW lock_timeout"),
        ("mariadb", "SET lock_wait_timeout = 7; SELECT @@lock_wait_timeout"),
    ],
    indirect=["people"],
)
def test_a_session_has_its_own_settings_afterwards(people, predict, setting):
    change, look = setting.split("; ")
    with open_engine(people.url) as engine:
        engine.execute(change)
        before = engine.execute(look).rows
        try_writing(engine, plan_target(engine, REFERENCE, TARGET))
        predict(engine, REFERENCE, TARGET)
        assert engine.execute(look).rows == before


@pytest.mark.parametrize("target", [("testdata", "score"), ("scores",), ("other",)])
def test_missing_rights_are_an_error_before_the_job(postgresql, target):
    postgresql.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name TEXT, role TEXT)",
        "CREATE TABLE other (x INTEGER)",
        f"DROP ROLE IF EXISTS reader_{target[0]}",
        f"CREATE ROLE reader_{target[0]} LOGIN PASSWORD 'x'",
        f"GRANT SELECT ON testdata, other TO reader_{target[0]}",
    )
    url = sa.make_url(postgresql.url).set(username=f"reader_{target[0]}", password="x")
    with open_engine(url.render_as_string(hide_password=False)) as engine:
        plan = plan_target(engine, REFERENCE, target, replace_table=True)
        with pytest.raises(DataError, match=r"permission|owner"):
            try_writing(engine, plan)


def test_a_table_of_another_schema_is_another_table(postgresql):
    postgresql.run(
        "CREATE SCHEMA a",
        "CREATE TABLE a.t (id INTEGER PRIMARY KEY, x INTEGER)",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)",
    )
    select = "SELECT x FROM a.t WHERE id IN (SELECT id FROM t)"
    with open_engine(postgresql.url) as engine:
        assert plan_target(engine, select, ("a", "t", "y")).table.schema == "a"
        with pytest.raises(DataError, match=r"rows of a\.t"):
            plan_target(engine, select, ("t", "y"))


def test_the_search_path_of_the_session_decides_what_a_name_means(postgresql, predict):
    for schema in ("public", "staging", "late"):
        postgresql.run(
            f"CREATE SCHEMA IF NOT EXISTS {schema}",
            f"CREATE TABLE {schema}.t_{schema} (id INTEGER PRIMARY KEY, x INTEGER)",
            f"CREATE TABLE {schema}.t (id INTEGER PRIMARY KEY, x INTEGER)",
            f"INSERT INTO {schema}.t VALUES (1, 2)",
        )
    with open_engine(postgresql.url) as engine:
        engine.execute("SET search_path TO staging, late")
        for number, target in enumerate([("public", "t", "p"), ("t", "p")]):
            select = f"SELECT x FROM {'.'.join(target[:-1])}"
            predict(engine, select, target, values=[(10.0 * number,)])
        for source, target in (("staging.t", "t"), ("t_late", "late.t_late")):
            with pytest.raises(DataError, match="reads"):
                plan_target(
                    engine,
                    f"SELECT DISTINCT x FROM {source}",
                    (*target.split("."), "p"),
                    replace_table=True,
                )
        plan = plan_target(engine, "SELECT 1 AS y", ("t_late",), replace_table=True)
        assert str(plan.table) == "late.t_late"
    rows = [postgresql.run(f"SELECT p FROM {schema}.t") for schema in ("public", "staging")]
    assert rows == [[(0.0,)], [(10.0,)]]


def test_use_decides_what_a_name_means_in_mariadb(mariadb, predict):
    other = sa.make_url(mariadb.url).database + "_other"
    mariadb.run(
        f"CREATE DATABASE {other}",
        "CREATE TABLE t (y INTEGER)",
        f"CREATE TABLE {other}.t (id INTEGER PRIMARY KEY, x INTEGER)",
        f"INSERT INTO {other}.t VALUES (1, 2)",
    )
    with open_engine(mariadb.url) as engine:
        engine.execute(f"USE {other}")
        predict(engine, "SELECT x FROM t", ("t", "p"))
    assert mariadb.run(f"SELECT * FROM {other}.t") == [(1, 2, 10.0)]


def test_a_connection_of_mariadb_needs_a_database(mariadb):
    url = sa.make_url(mariadb.url)
    mariadb.run("CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)")
    server = url.set(database="").render_as_string(hide_password=False)
    with open_engine(server) as engine:
        assert engine.tables() == {}
        for target in (("t", "p"), (url.database, "t", "p")):
            with pytest.raises(DataError, match="needs a database"):
                plan_target(engine, f"SELECT x FROM {url.database}.t", target)


def test_a_temporary_table_is_no_target(people):
    targets = [("few",), ("few", "p")]
    if not people.url.startswith("mariadb"):
        targets.append(("temp" if people.url.startswith("sqlite") else "pg_temp", "new", "p"))
    with open_engine(people.url) as engine:
        engine.execute("CREATE TEMPORARY TABLE few AS SELECT * FROM testdata")
        for target in targets:
            with pytest.raises(DataError, match="temporary"):
                plan_target(engine, "SELECT name, role FROM few", target, replace_table=True)
        assert plan_target(engine, "SELECT name, role FROM few", ("new",)).action == "create"
        engine.execute("CREATE TEMPORARY TABLE testdata AS SELECT * FROM few")
        with pytest.raises(DataError, match="is temporary"):
            plan_target(engine, REFERENCE, TARGET)


def test_too_few_predictions_change_nothing(people, predict):
    before = people.schema()
    with pytest.raises(DataError, match="fewer predictions"):
        predict(people, REFERENCE, TARGET, values=[(1.0,)] * 2)
    assert people.schema() == before


def test_a_column_that_was_added_in_vain_is_dropped(mariadb, predict):
    mariadb.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name TEXT, role TEXT)",
        "INSERT INTO testdata VALUES (1, 'Ann', 'a'), (2, 'Bob', 'b')",
        "CREATE TRIGGER no BEFORE UPDATE ON testdata FOR EACH ROW"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'",
    )
    before = mariadb.schema()
    with pytest.raises(DataError, match="not now"):
        predict(mariadb, REFERENCE, TARGET)
    assert mariadb.schema() == before


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    import sqlalchemy as sa
    from edl_horovod.sql.engine import open_engine
    from edl_horovod.sql.export import export
    from edl_horovod.sql.target import plan_target
    from edl_horovod.sql.writing import write_predictions

    url, folder, action = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    step = 0

    def write(fatal):
        def on_step(*_, **__):
            global step
            step += 1
            if step == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        target = {"update": ("testdata", "score"), "create": ("new",), "replace": ("other",)}
        select = "SELECT name, role FROM testdata"
        with open_engine(url) as engine:
            plan = plan_target(engine, select, target[action], replace_table=True)
            assert plan.action == action
            out = folder / str(fatal)
            table = export(engine, plan.select, out, nulls={}, tell=print, target=plan)
            for event in ("before_cursor_execute", "after_cursor_execute", "commit"):
                sa.event.listen(sa.Engine, event, on_step)
            write_predictions(engine, plan, table, [(1.5,)] * table.num_rows, tell=print)

    for line in sys.stdin:
        child = os.fork()
        if not child:
            write(int(line))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
)


long = pytest.mark.further


def _kills(url, folder, action):
    """Write predictions again and again, killed a step later each time, until one is whole.

    Yields the number of the step and the exit code.
    """
    command = [sys.executable, "-c", KILLED, url, folder, action]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ended = -signal.SIGKILL
        for fatal in itertools.count(1):
            print(fatal, file=process.stdin, flush=True)
            ended = int(process.stdout.readline())
            yield fatal, ended
            if ended != -signal.SIGKILL:
                break
        process.stdin.close()
    assert ended == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("people", "action"),
    [
        ("sqlite", "update"),
        ("sqlite", "create"),
        pytest.param("sqlite", "replace", marks=long),
        pytest.param("postgresql", "update", marks=long),
        pytest.param("postgresql", "create", marks=long),
        pytest.param("postgresql", "replace", marks=long),
        pytest.param("mariadb", "update", marks=long),
        pytest.param("mariadb", "create", marks=long),
    ],
    indirect=["people"],
)
def test_a_kill_at_any_step_leaves_the_database_as_it_was(people, tmp_path, action):
    people.run("CREATE TABLE other (x INTEGER)", "INSERT INTO other VALUES (7)")
    if people.url.startswith("mariadb"):
        # A new column commits by itself there.
        people.run("ALTER TABLE testdata ADD COLUMN score DOUBLE")
    contents = ["SELECT * FROM testdata ORDER BY id", "SELECT * FROM other"]
    before = people.schema(), [people.run(select) for select in contents]
    num_kills = 0
    for _, ended in _kills(people.url, tmp_path, action):
        if people.url.startswith("mariadb") and "new" in people.schema():
            # The statement that makes a table commits it, with all of its rows.
            assert people.run("SELECT count(*), sum(prediction) FROM new") == [(3, 4.5)]
            if ended:
                people.run("DROP TABLE new")
        if ended:
            num_kills += 1
            assert (people.schema(), [people.run(select) for select in contents]) == before
    assert num_kills > 6
    assert (people.schema(), [people.run(select) for select in contents]) != before


@long
def test_a_kill_in_mariadb_leaves_at_most_an_empty_column_that_the_next_run_fills(
    mariadb, predict, tmp_path
):
    mariadb.run(
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name VARCHAR(20), role VARCHAR(20))",
        "INSERT INTO testdata VALUES (1, 'Ann', 'a'), (2, 'Bob', 'b')",
    )
    before = mariadb.schema()
    num_empty = 0
    for fatal, ended in _kills(mariadb.url, tmp_path, "update"):
        if mariadb.schema() == before:
            continue
        scores = mariadb.run("SELECT score FROM testdata ORDER BY id")
        if not ended:
            assert scores == [(1.5,), (1.5,)]
            break
        assert scores == [(None,), (None,)], fatal
        num_empty += 1
        if num_empty == 1:
            predict(mariadb, REFERENCE, ("testdata", "score"))
            assert mariadb.run("SELECT score FROM testdata ORDER BY id") == [(10.0,), (20.0,)]
        mariadb.run("ALTER TABLE testdata DROP COLUMN score")
    assert num_empty
