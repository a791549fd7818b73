"""Statements as SQLFlow has them, on two engines: from a training to a table of importances."""

import pytest

from edl_horovod.errors import ConfigError, DataError
from tests.component.sql import sessions
from tests.component.sql.sessions import ROLES, Ring

TRAINED = """SELECT * FROM people TO TRAIN DNNClassifier
WITH model.n_classes={num_classes}, model.hidden_units=[8], train.epoch=3,
     validation.select="SELECT * FROM people" LABEL role COLUMN name, salary INTO c;"""
SCHEMAS = {"sqlite": "", "postgresql": "later."}


@pytest.fixture(params=SCHEMAS)
def place(request, tmp_path):
    """A session, its database, its ring and a prefix of names of new tables."""
    database, ring = request.getfixturevalue(request.param), Ring()
    rows = ", ".join(f"('n{n}', {n}.5, '{ROLES[n % 3]}')" for n in range(12))
    database.run(
        "CREATE TABLE people (name VARCHAR(9), salary FLOAT, role VARCHAR(9))",
        f"INSERT INTO people VALUES {rows}",
        *(["CREATE SCHEMA later"] if SCHEMAS[request.param] else []),
    )
    messages = []
    with sessions.session_on(database, tmp_path, ring, messages.append) as session:
        session.messages = messages
        yield session, database, ring, SCHEMAS[request.param]


def run(session, text):
    return sessions.run(session, text)[-1]


@pytest.mark.long
def test_a_program_of_sqlflow_runs(place):
    session, database, ring, schema = place
    run(session, TRAINED.format(num_classes=3))
    assert (ring.configs[0].model_def, ring.configs[0].train.epochs) == ("classifier.DNN", 3)
    assert any(" classifier.DNN" in sentence for sentence in session.messages)

    # The class is selected and predicted.
    run(session, f"SELECT * FROM people TO PREDICT {schema}guesses.role USING c")
    rows = database.run(f"SELECT * FROM {schema}guesses ORDER BY salary")
    assert rows[1] == ("n1", 1.5, "engineer")
    assert len(rows) == 12

    measured = run(
        session,
        'SELECT * FROM people TO EVALUATE c WITH validation.metrics="accuracy_score,f1_score"'
        f" LABEL role INTO {schema}measured; SELECT metric FROM {schema}measured ORDER BY metric",
    )
    assert {row[0] for row in measured.rows} == {"accuracy", "f1", "f1_macro"}

    explained = run(
        session,
        "SELECT * FROM people TO EXPLAIN c WITH summary.plot_type=bar, label_col=role"
        f' USING TreeExplainer INTO {schema}why; SELECT "column" FROM {schema}why',
    )
    assert {row[0] for row in explained.rows} == {"name", "salary"}
    messages = " ".join(session.messages)
    assert "plot_type" in messages
    assert "TreeExplainer" in messages
    assert run(session, "SHOW TRAIN c").rows[0][1].startswith("SELECT * FROM people TO TRAIN DNN")


@pytest.mark.long
def test_predictions_take_no_place_of_a_column_that_the_model_reads(place):
    session, _, _, schema = place
    run(session, TRAINED.format(num_classes=3))
    with pytest.raises(ConfigError, match=r"'salary'.* read"):
        run(session, f"SELECT * FROM people TO PREDICT {schema}guesses.salary USING c")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("n_classes=3", "n_classes=2"), "3 classes"),
        (("DNNClassifier", "DNNRegressor"), "a number"),
        (
            ("LABEL role COLUMN name, salary", "LABEL salary COLUMN name, role"),
            "whole number",
        ),
    ],
)
def test_a_label_that_the_model_cannot_learn_is_refused_before_the_job(place, change, said):
    session, _, ring, _ = place
    text = TRAINED.format(num_classes=3).replace(*change)
    if "Regressor" in text:
        text = text.replace("model.n_classes=3, ", "")
    with pytest.raises(DataError, match=said):
        run(session, text)
    assert ring.configs == []
