"""Statements about classes, from the rows of a database to metrics and what columns are worth."""

import contextlib
import datetime
import sqlite3

import numpy as np
import pytest

import edl_horovod
from tests.frameworks import FIRST_IN_CI

ROLES = ("clerk", "cook", "chief")
TRAINED = """SELECT * FROM employee
TO TRAIN classifier.wide_and_deep
WITH engine.framework={written_in!r}, model.hidden_units=[16], model.learning_rate=0.02,
     train.epochs=15, train.batch_size=40, train.class_weights='auto', train.split='random'
COLUMN age, hired, EMBEDDING(role, 4) FOR deep
COLUMN CROSS([role, BUCKET(age, [30, 40, 50])], 100), INDICATOR(role) FOR wide
LABEL paid INTO pay;"""


@pytest.fixture
def places(tmp_path):
    random = np.random.default_rng(0)
    first = datetime.date(2010, 1, 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "hr.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE employee (role TEXT, age INTEGER, hired TEXT, paid TEXT, note TEXT)"
        )
        for _ in range(400):
            role, age = int(random.integers(3)), int(random.integers(20, 60))
            hired = first + datetime.timedelta(days=int(random.integers(3000)))
            paid = "well" if 20 * role + age > 60 else "badly"
            row = (ROLES[role], age, hired.isoformat(), paid)
            connection.execute("INSERT INTO employee VALUES (?, ?, ?, ?, NULL)", row)
    return {"db": f"sqlite:///{tmp_path}/hr.db", "models": tmp_path / "models"}


@pytest.mark.further
@pytest.mark.timeout(900)
@pytest.mark.parametrize("written_in", FIRST_IN_CI)
def test_a_class_is_learned_measured_explained_and_predicted(places, written_in):
    edl_horovod.sql(TRAINED.format(written_in=written_in), **places)
    measured = edl_horovod.sql("SELECT * FROM employee TO EVALUATE pay", **places)
    assert measured.metrics["accuracy"] > 0.9
    confusion = [row for row in measured.rows if row[0] == "confusion"]
    assert sum(row[3] for row in confusion) == 400

    explained = edl_horovod.sql("SELECT * FROM employee TO EXPLAIN pay", **places)
    worth = {column: importance for column, importance, _ in explained.rows}
    assert min(worth["age"], worth["role"]) > worth["hired"] + 0.1

    text = "SELECT role, age, hired, note FROM employee LIMIT 20"
    text += " TO PREDICT WITH predict.probabilities=True USING pay"
    predicted = edl_horovod.sql(text, **places)
    assert predicted.columns[4:] == ("prediction", "probability_badly", "probability_well")
    for *_, chosen, badly, well in predicted.rows:
        assert badly + well == pytest.approx(1, abs=1e-5)
        assert chosen == ("well" if well > badly else "badly")
