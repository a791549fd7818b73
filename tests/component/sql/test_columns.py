"""Columns that a model does not read: of every engine, with values that nothing can learn from."""

import datetime

import pytest

from edl_horovod.errors import DataError
from tests.component.sql.sessions import ROLES, Place, Ring, session_on

COLUMNED = """SELECT * FROM people TRAIN regressor.DNN COLUMN name, role LABEL salary INTO m;"""
UNUSABLE = {
    "sqlite": {"remark TEXT": "NULL", "mixed": "CASE id % 2 WHEN 0 THEN 'even' ELSE 1 END"},
    "postgresql": {
        "remark text": "NULL",
        "number uuid": "gen_random_uuid()",
        "facts jsonb": "'{\"a\": [1]}'",
        "places int[]": "ARRAY[1, 2]",
        "share float8": "'inf'",
    },
    "mariadb": {"remark TEXT": "NULL", "length TIME": "'01:30:00'"},
}


@pytest.fixture(params=UNUSABLE)
def place(request, tmp_path):
    database = request.getfixturevalue(request.param)
    unusable, ring = UNUSABLE[request.param], Ring()
    rows = ", ".join(
        f"({n}, 'n{n}', '{ROLES[n % 3]}', {n}.5, {', '.join('NULL' for _ in unusable)})"
        for n in range(12)
    )
    database.run(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR(9), role VARCHAR(9), salary"
        f" FLOAT, {', '.join(unusable)})",
        f"INSERT INTO people VALUES {rows}",
        *(f"UPDATE people SET {name.split()[0]} = {value}" for name, value in unusable.items()),
    )
    with session_on(database, tmp_path, ring) as session:
        yield Place(session, database, ring)


@pytest.mark.long
def test_a_training_with_column_reads_nothing_else(place):
    place.run(COLUMNED)
    assert place.ring.rows[0][1] == {"name": "n1", "role": "engineer", "salary": 1.5}
    described = place.run("DESCRIBE MODEL m")
    columns = {name for part, name, _ in described.rows if part == "column"}
    assert columns == {"name", "role"}


@pytest.mark.long(after=1)
def test_a_training_without_column_names_what_it_cannot_read(place):
    with pytest.raises(DataError):
        place.run(COLUMNED.replace("COLUMN name, role ", ""))


@pytest.mark.long
def test_rows_are_held_back_by_a_column_that_is_not_read(place):
    split = "WITH train.split='key', train.split_column='id' COLUMN"
    place.run(COLUMNED.replace("COLUMN", split))
    assert {row["id"] for row in place.ring.rows[0]} < set(range(12))
    place.run("SELECT name, role, salary FROM people EVALUATE m")


@pytest.mark.long
def test_an_evaluation_and_an_explanation_read_what_the_model_reads(place):
    place.run(COLUMNED)
    measured = place.run("SELECT * FROM people EVALUATE m LABEL salary")
    assert measured.metrics["num_rows"] == 12
    explained = place.run("SELECT * FROM people EXPLAIN m")
    assert sorted(row[0] for row in explained.rows) == ["name", "role"]
    assert all(row.keys() == {"name", "role", "salary"} for row in place.ring.rows[1])


@pytest.mark.long
def test_a_prediction_needs_no_column_that_the_model_does_not_read(place):
    place.run(COLUMNED)
    result = place.run("SELECT role, name FROM people ORDER BY id PREDICT USING m")
    assert result.rows[2] == ("manager", "n2", 2.0)
    result = place.run("SELECT * FROM people ORDER BY id PREDICT USING m")
    assert result.rows[2] == (*place.database.run("SELECT * FROM people WHERE id = 2")[0], 2.0)
    place.run("SELECT id, remark, name, role FROM people PREDICT done USING m")
    rows = place.database.run("SELECT * FROM done WHERE id = 2")
    assert rows == [(2, None, "n2", "manager", 2.0)]
    place.run("SELECT * FROM people ORDER BY id PREDICT people.predicted USING m")
    assert place.database.run("SELECT predicted FROM people WHERE id = 2") == [(2.0,)]


@pytest.mark.long
def test_a_null_in_a_column_that_the_model_reads_is_still_refused(place):
    place.run(COLUMNED)
    place.database.run("UPDATE people SET role = NULL WHERE id = 3")
    with pytest.raises(DataError, match="'role' in 1"):
        place.run("SELECT * FROM people EVALUATE m")


DATED = "SELECT day, at, part, salary FROM dated TRAIN regressor.DNN {clause}LABEL salary INTO m"


@pytest.fixture
def dated(sqlite, tmp_path):
    """Dates in columns of text, the only ones that some programs make."""
    sqlite.run(
        "CREATE TABLE dated (day TEXT, at TEXT, part TEXT, salary REAL)",
        "INSERT INTO dated VALUES ('2026-01-31', '2026-01-31 12:30', '2026-01', 1)",
        "INSERT INTO dated VALUES ('2026-02-28', '2026-02-28T08:00:01.5', '2026-02', 2)",
    )
    ring = Ring()
    ring.read = ["at", "day", "part"]
    with session_on(sqlite, tmp_path, ring) as session:
        yield Place(session, sqlite, ring)


@pytest.mark.long
def test_texts_that_are_all_dates_are_dates_in_sqlite(dated):
    dated.run(DATED.format(clause=""))
    assert dated.ring.rows[0][1] == {
        "day": datetime.date(2026, 2, 28),
        "at": datetime.datetime(2026, 2, 28, 8, 0, 1, 500_000, tzinfo=datetime.UTC),
        "part": "2026-02",
        "salary": 2.0,
    }
    described = {name: kind for part, name, kind in dated.run("DESCRIBE MODEL m").rows}
    assert (described["day"], described["at"]) == ("date (TEXT)", "timestamp (TEXT)")
    assert dated.run("SELECT * FROM dated EVALUATE m").metrics["num_rows"] == 2
    result = dated.run("SELECT day, at, part FROM dated PREDICT USING m")
    assert result.rows[1] == ("2026-02-28", "2026-02-28T08:00:01.5", "2026-02", 1.0)
    assert dated.ring.rows[-1][0]["day"] == datetime.date(2026, 1, 31)
    dated.database.run("UPDATE dated SET day = 'soon' WHERE salary = 2")
    with pytest.raises(DataError, match=r"'day' .* date"):
        dated.run("SELECT day, at, part FROM dated PREDICT USING m")


@pytest.mark.long
@pytest.mark.parametrize(
    ("clause", "change"),
    [
        ("", "day = 'soon'"),
        ("", "day = '2026-02-30'"),
        ("COLUMN CATEGORY_HASH(day, 9), at, part ", "day = day"),
        ("WITH train.nulls={'day': 'never'} ", "day = NULL"),
    ],
)
def test_texts_that_are_no_dates_or_are_categories_stay_texts(dated, clause, change):
    dated.database.run(f"UPDATE dated SET {change} WHERE salary = 2")
    dated.run(DATED.format(clause=clause))
    assert dated.ring.rows[0][0]["day"] == "2026-01-31"
    dated.run("SELECT * FROM dated WHERE salary = 1 EVALUATE m")
    assert dated.ring.rows[1][0]["day"] == "2026-01-31"
