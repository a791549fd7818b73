"""A TRAIN that only names its model, on a database of each engine: whole jobs."""

import pytest

import edl_horovod
from tests import databases

PEOPLE = "role VARCHAR(9), age INTEGER, years DOUBLE PRECISION, salary DOUBLE PRECISION"
PAY = {"engineer": 100.0, "manager": 150.0, "clerk": 60.0}


def people(num_rows):
    for number in range(num_rows):
        role, age, years = list(PAY)[number % 3], 20 + number * 7 % 45, number * 5 % 31 / 2
        yield role, age, years, PAY[role] + age / 3 + 2 * abs(years - 8)


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request, tmp_path):
    if request.param == "sqlite":
        (tmp_path / "some.db").touch()
        database = databases.Database(f"sqlite:///{tmp_path / 'some.db'}")
    else:
        server = request.getfixturevalue("postgresql_server")
        database = databases.new_database(server, "postgres")
    values = ", ".join(f"{row}" for row in people(300))
    database.run(f"CREATE TABLE people ({PEOPLE})", f"INSERT INTO people VALUES {values}")
    return {"db": database.url, "models": tmp_path / "models", "framework": "torch"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_model_is_good_by_default_and_beside_a_linear_model(places):
    pytest.importorskip("torch", reason="make setup FRAMEWORKS=torch")
    trained = edl_horovod.sql("SELECT * FROM people TRAIN regressor.DNN INTO pay", **places)
    assert "model: rmse" in trained.message
    assert "Warning" not in trained.message
    described = edl_horovod.sql("DESCRIBE MODEL pay", **places)
    facts = {(part, name): value for part, name, value in described.rows}
    assert facts["training", "split"] == "random: 10% held back"
    held_back = {name: facts["held back", f"rmse of {name}"] for name in ("model", "linear")}
    assert held_back["model"] < held_back["linear"]
    assert trained.metrics["loss"] < 0.05


@pytest.mark.further
@pytest.mark.timeout(600)
def test_a_linear_model_learns_and_predicts_rows_with_nulls(places):
    pytest.importorskip("torch", reason="make setup FRAMEWORKS=torch")
    database = databases.Database(places["db"])
    database.run(
        "CREATE TABLE sums (a INTEGER, b DOUBLE PRECISION, kind VARCHAR(9), y DOUBLE PRECISION)",
        *(
            f"INSERT INTO sums VALUES ({number}, {number * 7 % 11}, '{number % 2}',"
            f" {3 * number - 5 * (number * 7 % 11) + 40 * (number % 2)})"
            for number in range(200)
        ),
        "UPDATE sums SET b = NULL, y = y + 5 * (a * 7 % 11) - 25 WHERE a % 10 = 3",
        "UPDATE sums SET kind = NULL WHERE a IN (20, 40, 60, 80)",
    )
    statement = "SELECT * FROM sums TRAIN regressor.Linear WITH train.nulls='mean' INTO sums"
    trained = edl_horovod.sql(f"{statement};", **places)
    assert trained.metrics["loss"] < 0.01
    assert "Warning" not in trained.message
    described = edl_horovod.sql("DESCRIBE MODEL sums", **places)
    mean = next(text for part, name, text in described.rows if (part, name) == ("null", "b"))
    predictions = []
    for b, kind in (("NULL", "NULL"), (mean.split()[-1], "'1'")):
        database.run(f"UPDATE sums SET b = {b}, kind = {kind}")
        predicted = edl_horovod.sql("SELECT a, b, kind FROM sums PREDICT USING sums", **places)
        predictions.append([row[-1] for row in predicted.rows])
    assert predictions[0] == pytest.approx(predictions[1], abs=1e-3)
