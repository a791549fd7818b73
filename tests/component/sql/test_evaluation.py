"""EVALUATE, mostly without a model, on each engine: columns of a SELECT, where metrics go."""

import datetime

import pytest

from edl_horovod.errors import DataError, EdlError
from edl_horovod.sql.statements import StatementError
from tests.component.sql.sessions import CLASSIFIED, rows_of, run, session_on
from tests.later import LATER

if LATER:
    from sklearn import metrics as sklearn

ENGINES = ["sqlite", "postgresql", "mariadb"]
TRUE, PREDICTED = [1.5, 2.0, 4.0, 0.25], [1.0, 2.5, 4.0, 1.0]
ROLES, GUESSES = ["clerk", "boss", "clerk", "temp"], ["clerk", "clerk", "clerk", "boss"]


def no_job(config):
    raise AssertionError("nothing is trained or predicted")


@pytest.fixture
def session(request, tmp_path):
    database = request.getfixturevalue(getattr(request, "param", "sqlite"))
    rows = ", ".join(
        f"({number}, {true}, {predicted}, '{role}', '{guess}')"
        for number, (true, predicted, role, guess) in enumerate(
            zip(TRUE, PREDICTED, ROLES, GUESSES, strict=True)
        )
    )
    database.run(
        "CREATE TABLE t (id INTEGER, y NUMERIC(10, 2), p DOUBLE PRECISION, role VARCHAR(20),"
        " guess VARCHAR(20), note VARCHAR(20))",
        f"INSERT INTO t (id, y, p, role, guess) VALUES {rows}",
    )
    with session_on(database, tmp_path, no_job) as session:
        yield session


@pytest.mark.parametrize("session", ENGINES, indirect=True)
def test_two_columns_of_numbers_have_the_metrics_of_a_regressor(session):
    (result,) = run(session, "SELECT * FROM t EVALUATE LABEL y USING p")
    assert result.columns == ("metric", "value")
    assert result.metrics == pytest.approx(
        {
            "rmse": sklearn.mean_squared_error(TRUE, PREDICTED) ** 0.5,
            "mae": sklearn.mean_absolute_error(TRUE, PREDICTED),
            "r2": sklearn.r2_score(TRUE, PREDICTED),
            "num_rows": 4,
        }
    )


@pytest.mark.parametrize("session", ENGINES, indirect=True)
def test_two_columns_of_texts_have_the_metrics_of_a_classifier(session):
    wanted = "WITH validation.metrics='accuracy, f1_macro, confusion, auc'"
    (result,) = run(session, f"SELECT role, guess FROM t EVALUATE {wanted} LABEL role USING guess")
    assert result.metrics["accuracy"] == 0.5
    f1 = sklearn.f1_score(ROLES, GUESSES, average="macro", zero_division=0)
    assert result.metrics["f1_macro"] == pytest.approx(f1)
    assert ("confusion", "boss", "clerk", 1.0) in result.rows
    assert ("auc", None, None, None) in result.rows


@pytest.mark.parametrize(
    ("clauses", "kind"),
    [
        ("LABEL y USING guess", DataError),
        ("LABEL note USING role", DataError),
        ("LABEL y USING predicted", StatementError),
        ("LABEL y USING y", StatementError),
        ("WITH validation.metrics='auc' LABEL y USING p", StatementError),
        ("WITH validation.batch_size=5 LABEL y USING p", StatementError),
        ("WITH validation.nulls={'y': 0} LABEL y USING p", StatementError),
        ("LABEL y", StatementError),
        ("USING p", StatementError),
    ],
)
def test_columns_that_cannot_be_compared_are_an_error(session, clauses, kind):
    with pytest.raises(kind):
        run(session, f"SELECT * FROM t EVALUATE {clauses}")


@pytest.mark.parametrize("session", ENGINES, indirect=True)
def test_two_columns_of_one_name_are_not_compared(session):
    select = "SELECT a.y, b.y, a.p FROM t AS a JOIN t AS b ON b.id = 3 - a.id"
    for clauses in ("LABEL a.y USING b.y", "LABEL y USING p", "LABEL p USING y"):
        with pytest.raises(EdlError):
            run(session, f"{select} EVALUATE {clauses}")
    run(session, f"{select.replace('b.y', 'b.y AS other')} EVALUATE LABEL a.y USING other")


def test_columns_of_many_different_texts_are_not_compared(session):
    select = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {num_classes})"
        " SELECT 'a' || i AS a, 'a' || i AS b FROM n EVALUATE LABEL a USING b"
    )
    with pytest.raises(DataError, match="1,001 classes"):
        run(session, select.format(num_classes=1001))
    assert run(session, select.format(num_classes=50))[0].metrics["accuracy"] == 1


def test_no_row_is_an_error(session):
    with pytest.raises(DataError):
        run(session, "SELECT * FROM t WHERE id > 9 EVALUATE LABEL y USING p")


@pytest.mark.long(after=1)
@pytest.mark.parametrize("session", ENGINES, indirect=True)
def test_evaluations_of_all_kinds_are_added_to_one_table_with_their_date(session):
    of_numbers = "SELECT * FROM t EVALUATE LABEL y USING p INTO history;"
    of_classes = "SELECT role, guess FROM t EVALUATE LABEL role USING guess INTO history;"
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None, microsecond=0)
    *_, rows = run(session, of_numbers + of_classes + of_numbers + "SELECT * FROM history")
    assert rows.columns == ("model", "evaluated", "metric", "class", "predicted", "value")
    assert [row["metric"] for row in rows.dicts()].count("rmse") == 2
    assert [row["value"] for row in rows.dicts() if row["metric"] == "accuracy"] == [0.5]
    for row in rows.dicts():
        moment = row["evaluated"]
        if isinstance(moment, str):
            moment = datetime.datetime.fromisoformat(moment)
        assert before <= moment <= before + datetime.timedelta(minutes=5)
    overwriting = of_numbers.replace("LABEL", "WITH validation.overwrite=True LABEL")
    *_, rows = run(session, overwriting + "SELECT * FROM history")
    assert len(rows) == 4


@pytest.mark.parametrize("session", ENGINES, indirect=True)
def test_the_table_of_results_is_the_one_that_the_database_means_by_its_name(session):
    evaluate = "SELECT * FROM t EVALUATE LABEL y USING p INTO History;"
    *_, added, by_name = run(session, f"{evaluate}{evaluate}SELECT * FROM History")
    assert "4 more rows" in added.message
    assert len(by_name) == 8


def test_a_table_of_others_gets_no_rows(session):
    with pytest.raises(DataError):
        run(session, "SELECT * FROM t EVALUATE LABEL y USING p INTO t")
    *_, count = run(session, "SELECT count(*) AS n FROM t")
    assert count.rows == ((4,),)


@pytest.mark.long
def test_labels_of_bytes_are_classes_of_text(database, ring, tmp_path):
    database.run("UPDATE employee SET role = CAST(role AS BLOB)")
    with session_on(database, tmp_path, ring) as session:
        *_, evaluated = run(session, CLASSIFIED + "SELECT * FROM employee EVALUATE c")
    assert evaluated.metrics["accuracy"] == 1.0


@pytest.mark.long
def test_metrics_never_replace_another_table(database, ring, tmp_path):
    before = rows_of(database, "employee")
    text = "SELECT * FROM employee EVALUATE c WITH validation.overwrite=True INTO employee"
    with (
        session_on(database, tmp_path, ring) as session,
        pytest.raises(DataError, match="other columns"),
    ):
        run(session, CLASSIFIED + text)
    assert rows_of(database, "employee") == before
