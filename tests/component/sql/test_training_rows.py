"""Rows of a training: held back for the validation, and with NULLs filled."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.errors import DataError
from edl_horovod.sql.statements import StatementError
from edl_horovod.sql.training_rows import Split, fill_nulls, part_folders, split_rows
from tests.component.sql.sessions import Place, Ring, session_on

NUM_ROWS = 1000
COLUMNS = ("id", "age", "height", "role", "hired", "salary")
ROWS = [
    (1, 20, 1.5, "'cook'", "'2026-01-01'", 1.0),
    (2, "NULL", "NULL", "NULL", "NULL", 2.0),
    (3, 25, 2.0, "'cook'", "'2026-01-03'", 3.0),
    (4, 24, "NULL", "'clerk'", "'2026-01-08'", 4.0),
]
TRAINED = """SELECT age, height, role, hired, salary FROM people
TRAIN regressor.DNN WITH train.nulls='mean'{attributes} LABEL salary INTO m;"""
FILLED = {"age": 23, "height": 1.75, "role": "cook", "hired": datetime.date(2026, 1, 4)}


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    for number in range(2):
        rows = range(number * NUM_ROWS // 2, (number + 1) * NUM_ROWS // 2)
        columns = {"a": list(rows), "late": [int(row % 10 == 0) for row in rows]}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def rows_of(folder):
    files = sorted(folder.glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).column("a").to_pylist()]


@pytest.mark.parametrize(
    ("split", "share"),
    [
        (Split(kind="random", fraction=0.2), 0.2),
        (Split(kind="sequential", fraction=0.2), 0.2),
        (Split(kind="key", fraction=0.2, column=""), 0.2),
        (Split(kind="column", column="late"), 0.1),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_every_row_is_on_one_side(split, share, records, tmp_path):
    split_rows(records, tmp_path / "both", split, "a")
    training, validation = part_folders(tmp_path / "both")
    learned, held_back = rows_of(training), rows_of(validation)
    assert sorted(learned + held_back) == list(range(NUM_ROWS))
    assert learned == sorted(learned)
    assert held_back == sorted(held_back)
    assert len(held_back) == pytest.approx(share * NUM_ROWS, abs=0.05 * NUM_ROWS)


def test_a_side_without_rows_is_refused(records, tmp_path):
    split = Split(kind="sequential", fraction=0.0001)
    with pytest.raises(DataError, match="0 of 1,000"):
        split_rows(records, tmp_path / "both", split)


def test_a_class_is_not_held_back_altogether(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    rows = np.arange(NUM_ROWS)
    split = Split(kind="random", fraction=0.2)
    held_back = int(np.flatnonzero(split.by_number(0, NUM_ROWS))[0])
    labels = np.where(rows == held_back, "rare", np.where(rows % 2, "odd", "even"))
    pq.write_table(pa.table({"a": rows, "label": labels}), folder / "0.parquet")
    split_rows(folder, tmp_path / "both", split, label="label")
    training, validation = part_folders(tmp_path / "both")
    assert held_back in rows_of(training)
    assert len(rows_of(validation)) > 100


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
    with session_on(database, tmp_path, ring) as session:
        yield Place(session, database, ring)


def learned(place):
    """The rows of the first job, by their salaries."""
    return {row.pop("salary"): row for row in place.ring.rows[0]}


def test_each_kind_of_column_is_filled_from_the_training_rows(tmp_path):
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    day = datetime.timedelta(days=1)
    columns = {
        "boolean": pa.array([True, None, False, True], pa.bool_()),
        "timestamp": pa.array([noon, noon + 2 * day, None, None], pa.timestamp("us", tz="UTC")),
        "date": pa.array([noon.date(), None, (noon + 3 * day).date(), None], pa.date32()),
        "integer": pa.array([-1, -2, None, None], pa.int64()),
        "number": pa.array([1e308, 1.5e308, None, None], pa.float64()),
        "text": pa.array(["b", "a", None, None], pa.string()),
    }
    training, held_back = tmp_path / "training", tmp_path / "held_back"
    for folder, rows in ((training, slice(0, 4)), (held_back, slice(2, 3))):
        folder.mkdir()
        pq.write_table(pa.table(columns)[rows], folder / "part-00000.parquet")
    values = fill_nulls(training, held_back, list(columns), columns_with_nulls=set(columns))
    assert values == {
        "boolean": True,
        "timestamp": (noon + day).isoformat(),
        "date": "2026-01-03",  # Half a day is rounded up.
        "integer": -1,
        "number": pytest.approx(1.25e308),
        "text": "a",  # The smaller one of two that are equally frequent.
    }
    (row,) = pq.read_table(held_back / "part-00000.parquet").to_pylist()
    assert row["timestamp"] == noon + day
    assert (row["boolean"], row["date"]) == (False, (noon + 3 * day).date())


@pytest.mark.long
def test_rows_held_back_of_another_kind_are_refused(place):
    place.database.run(
        "UPDATE people SET role = 'cook' WHERE id < 3", "UPDATE people SET role = NULL WHERE id > 2"
    )
    with pytest.raises(DataError, match=r"validation_select"):
        place.run(
            """SELECT role, salary FROM people WHERE id < 3 TRAIN regressor.DNN
            WITH train.nulls={'role': 5},
            train.validation_select='SELECT role, salary FROM people WHERE id > 2'
            LABEL salary INTO m;"""
        )
    assert place.ring.rows == []


@pytest.mark.long
def test_nulls_are_filled_in_all_columns_and_those_of_later_rows_with_the_same_values(place):
    place.run(TRAINED.format(attributes=""))
    rows, hired = learned(place), datetime.date(2026, 1, 8)
    assert rows[2.0] == FILLED
    assert rows[4.0] == {"age": 24, "height": 1.75, "role": "clerk", "hired": hired}
    for column in ("age", "height", "role", "hired"):
        place.database.run(f"UPDATE people SET {column} = NULL")
    place.run("SELECT * FROM people EVALUATE m")
    place.run("SELECT * FROM people PREDICT people.guess USING m")
    for job in (1, 2):
        for row in place.ring.rows[job]:
            assert {name: row[name] for name in FILLED} == FILLED
    defaults = {
        name: text for part, name, text in place.run("DESCRIBE MODEL m").rows if part == "null"
    }
    assert defaults["age"] == "counts as 23"
    assert "2026-01-04" in defaults["hired"]


@pytest.mark.long
def test_what_is_held_back_says_nothing_about_the_values(place):
    attributes = ", train.validation_select='SELECT age, height, role, hired, salary FROM people"
    attributes += " WHERE id IN (3, 4)'"
    text = TRAINED.format(attributes=attributes).replace(
        "FROM people\n", "FROM people WHERE id < 3\n"
    )
    place.run(text)
    assert learned(place)[2.0] == {
        "age": 20,
        "height": 1.5,
        "role": "cook",
        "hired": datetime.date(2026, 1, 1),
    }


@pytest.mark.long
def test_rows_held_back_may_be_null_alone(place):
    place.database.run("UPDATE people SET role = NULL, hired = NULL, age = NULL WHERE id = 4")
    attributes = ", train.validation_select='SELECT age, height, role, hired, salary FROM people"
    attributes += " WHERE id IN (2, 4)'"
    assert place.run(TRAINED.format(attributes=attributes)).model == "m@1"
    assert learned(place)[2.0]["role"] == "cook"


@pytest.mark.long
def test_means_of_the_largest_numbers_are_exact(place):
    place.database.run("ALTER TABLE people ADD COLUMN big BIGINT")
    for row, big in ((1, 2**62), (3, 2**62 + 2), (4, 2**62 + 1)):
        place.database.run(f"UPDATE people SET big = {big}, height = 1e308 WHERE id = {row}")
    place.ring.read = [*COLUMNS[1:], "big"]
    place.run(TRAINED.format(attributes="").replace("age, height", "age, big, height"))
    row = learned(place)[2.0]
    assert row["big"] == 2**62 + 1
    assert row["height"] == pytest.approx(1e308)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("change", "said"),
    [("salary = NULL WHERE id = 3", "'salary' in 1"), ("height = NULL", "'height' has")],
    ids=["a label", "a column without any value"],
)
def test_nulls_that_nothing_fills_are_an_error(place, change, said):
    place.database.run(f"UPDATE people SET {change}")
    with pytest.raises(DataError, match=said):
        place.run(TRAINED.format(attributes=""))
    assert place.ring.rows == []


@pytest.mark.long
@pytest.mark.parametrize("written", ["'median'", "3", "[1]"])
def test_other_values_are_refused(place, written):
    with pytest.raises(StatementError, match=r"train\.nulls"):
        place.run(TRAINED.format(attributes="").replace("'mean'", written))


@pytest.mark.long
def test_rows_may_be_held_back_by_a_column_with_nulls(place):
    attributes = ", train.split='key', train.split_column='hired', train.split_fraction=0.5"
    values = (f"({number}, 30, 1.5, NULL, '2026-02-{number:02}', 7.5)" for number in range(5, 25))
    place.database.run(f"INSERT INTO people VALUES {', '.join(values)}")
    place.run(TRAINED.format(attributes=attributes))
    assert None not in [row["role"] for row in place.ring.rows[0]]


@pytest.mark.long
def test_values_are_kept_as_json(place, tmp_path):
    place.run(TRAINED.format(attributes=""))
    about = json.loads((tmp_path / "models" / "m" / "1" / "about.json").read_text())
    assert about["nulls"] == FILLED | {"hired": "2026-01-04"}
