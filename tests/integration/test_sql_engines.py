"""A yes or no is learned, measured and predicted with the rows of each engine: whole jobs."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import edl_horovod
from tests import databases
from tests.frameworks import NEEDS_KERAS

ROWS = [(number, f"role {number % 4}", 20 + number % 40) for number in range(160)]
TRAINED = """SELECT role, age, stays FROM {table}
TRAIN classifier.DNN
WITH hidden_units=[16], learning_rate=0.03, train.epochs=20, train.batch_size=40,
     engine.num_workers=2
LABEL stays INTO stay;"""
long = pytest.mark.further


def stays(role, age):
    return role != "role 0" and age < 50


@pytest.fixture(params=["postgresql", pytest.param("mariadb", marks=long)])
def database(request):
    """A table of people, and one that is to be predicted."""
    server = request.getfixturevalue(f"{request.param}_server")
    database = databases.new_database(
        server, {"postgresql": "postgres", "mariadb": "first"}[request.param]
    )
    people = ", ".join(f"({n}, '{role}', {age}, {stays(role, age)})" for n, role, age in ROWS)
    newcomers = ", ".join(f"({n}, '{role}', {age})" for n, role, age in ROWS[:12])
    database.run(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, role VARCHAR(9), age INTEGER, stays BOOLEAN)",
        f"INSERT INTO people VALUES {people}",
        "CREATE TABLE newcomers (id INTEGER PRIMARY KEY, role VARCHAR(20), age INTEGER)",
        f"INSERT INTO newcomers VALUES {newcomers}",
    )
    return database


@pytest.mark.timeout(600)
@pytest.mark.further
@NEEDS_KERAS
def test_a_server_gets_predictions_of_a_boolean_label(database, tmp_path):
    places = {"db": database.url, "models": tmp_path / "models"}
    edl_horovod.sql(TRAINED.format(table="people"), **places)
    measured = edl_horovod.sql("SELECT * FROM people EVALUATE stay", **places)
    assert measured.metrics["accuracy"] > 0.9
    edl_horovod.sql("SELECT role, age FROM newcomers PREDICT newcomers.stays USING stay", **places)
    rows = database.run("SELECT id, role, age, stays FROM newcomers ORDER BY id")
    assert [row[:3] for row in rows] == ROWS[:12]
    right = [bool(predicted) == stays(role, age) for _, role, age, predicted in rows]
    assert sum(right) >= 11


@long
@pytest.mark.timeout(600)
@NEEDS_KERAS
def test_the_best_of_several_trainings_on_rows_of_a_server(database, tmp_path):
    varied = TRAINED.replace("0.03", "HPARAM_CANDIDATES([0.000001, 0.03])")
    places = {"db": database.url, "models": tmp_path / "models"}
    with_split = varied.replace(
        "engine.", "train.split='random', train.split_fraction=0.2, engine."
    )
    edl_horovod.sql(with_split.format(table="people"), **places)
    described = edl_horovod.sql("DESCRIBE MODEL stay", **places)
    assert [row[1:] for row in described.rows if row[0] == "chosen"] == [("learning_rate", "0.03")]
    assert sum(row[0] == "trial" for row in described.rows) == 2
    measured = edl_horovod.sql("SELECT * FROM people EVALUATE stay", **places)
    assert measured.metrics["accuracy"] > 0.9


@long
@pytest.mark.timeout(600)
@NEEDS_KERAS
def test_files_of_parquet_are_learned_from_with_duckdb(tmp_path):
    file = tmp_path / "people.parquet"
    columns = {"role": [row[1] for row in ROWS], "age": [row[2] for row in ROWS]}
    columns["stays"] = [stays(role, age) for _, role, age in ROWS]
    pq.write_table(pa.table(columns), file)
    places = {"db": "duckdb://", "models": tmp_path / "models"}
    edl_horovod.sql(TRAINED.format(table=f"'{file}'"), **places)
    measured = edl_horovod.sql(f"SELECT * FROM '{file}' EVALUATE stay", **places)
    assert measured.metrics["accuracy"] > 0.9
    predicted = edl_horovod.sql(
        f"SELECT role, age FROM '{file}' LIMIT 12 PREDICT USING stay", **places
    )
    right = [chosen == stays(role, age) for role, age, chosen in predicted.rows]
    assert sum(right) >= 11
