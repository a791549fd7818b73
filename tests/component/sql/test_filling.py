"""`train.nulls='mean'`: what NULLs are filled with, in a training and after it."""

import datetime
import json

import pytest

from edl_horovod.errors import DataError
from edl_horovod.sql.session import open_session
from edl_horovod.sql.settings import read_settings
from edl_horovod.sql.statements import StatementError
from tests.component.sql.test_columns import Place
from tests.component.sql.test_session import Ring

COLUMNS = ("id", "age", "height", "role", "hired", "salary")
ROWS = [
    (1, 20, 1.5, "'cook'", "'2026-01-01'", 1.0),
    (2, "NULL", "NULL", "NULL", "NULL", 2.0),
    (3, 25, 2.0, "'cook'", "'2026-01-03'", 3.0),
    (4, 24, "NULL", "'clerk'", "'2026-01-08'", 4.0),
]
TRAINED = """SELECT age, height, role, hired, salary FROM people
TRAIN regressor.DNN WITH train.nulls='mean'{more} LABEL salary INTO m;"""
FILLED = {"age": 23, "height": 1.75, "role": "cook", "hired": datetime.date(2026, 1, 4)}


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def place(request, tmp_path):
    database, ring = request.getfixturevalue(request.param), Ring()
    ring.read = [*COLUMNS[1:]]
    rows = ", ".join(f"({', '.join(map(str, row))})" for row in ROWS)
    database.run(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, age INTEGER, height DOUBLE PRECISION,"
        " role VARCHAR(9), hired DATE, salary DOUBLE PRECISION)",
        f"INSERT INTO people VALUES {rows}",
    )
    settings = read_settings([f"db={database.url}", f"models={tmp_path}/models"], {})
    with open_session(settings, ring) as session:
        yield Place(session, database, ring)


def learned(place):
    """The rows of the first job, by their salaries."""
    return {row.pop("salary"): row for row in place.ring.rows[0]}


def test_nulls_are_filled_in_all_columns(place):
    place.run(TRAINED.format(more=""))
    rows = learned(place)
    assert rows[2.0] == FILLED
    assert rows[4.0] == {
        "age": 24,
        "height": 1.75,
        "role": "clerk",
        "hired": datetime.date(2026, 1, 8),
    }


def test_later_rows_are_filled_with_the_same_values(place):
    place.run(TRAINED.format(more=""))
    for column in ("age", "height", "role", "hired"):
        place.database.run(f"UPDATE people SET {column} = NULL")
    place.run("SELECT * FROM people EVALUATE m")
    place.run("SELECT * FROM people PREDICT people.guess USING m")
    for job in (1, 2):
        for row in place.ring.rows[job]:
            assert {name: row[name] for name in FILLED} == FILLED
    kept = {name: text for part, name, text in place.run("DESCRIBE MODEL m").rows if part == "null"}
    assert kept["age"] == "counts as 23"
    assert "2026-01-04" in kept["hired"]


def test_what_is_held_back_says_nothing_about_the_values(place):
    more = ", train.validation_select='SELECT age, height, role, hired, salary FROM people"
    more += " WHERE id IN (3, 4)'"
    text = TRAINED.format(more=more).replace("FROM people\n", "FROM people WHERE id < 3\n")
    place.run(text)
    assert learned(place)[2.0] == {
        "age": 20,
        "height": 1.5,
        "role": "cook",
        "hired": datetime.date(2026, 1, 1),
    }


def test_a_label_that_is_null_is_an_error(place):
    place.database.run("UPDATE people SET salary = NULL WHERE id = 3")
    with pytest.raises(DataError, match="'salary' in 1 of 4 rows"):
        place.run(TRAINED.format(more=""))


def test_a_column_without_any_value_is_an_error(place):
    place.database.run("UPDATE people SET height = NULL")
    with pytest.raises(DataError, match="'height' has NULLs"):
        place.run(TRAINED.format(more=""))
    assert place.ring.rows == []


@pytest.mark.parametrize("written", ["'median'", "3", "[1]"])
def test_other_values_are_refused(place, written):
    with pytest.raises(StatementError, match=r"train\.nulls must be"):
        place.run(TRAINED.format(more="").replace("'mean'", written))


def test_rows_may_be_held_back_by_a_column_with_nulls(place):
    more = ", train.split='key', train.split_column='hired', train.split_fraction=0.5"
    values = (f"({number}, 30, 1.5, NULL, '2026-02-{number:02}', 7.5)" for number in range(5, 25))
    place.database.run(f"INSERT INTO people VALUES {', '.join(values)}")
    place.run(TRAINED.format(more=more))
    assert None not in [row["role"] for row in place.ring.rows[0]]


def test_values_are_kept_as_json(place, tmp_path):
    place.run(TRAINED.format(more=""))
    about = json.loads((tmp_path / "models" / "m" / "1" / "about.json").read_text())
    assert about["nulls"] == FILLED | {"hired": "2026-01-04"}
