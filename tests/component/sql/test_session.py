"""Statements on sqlite with a stand-in for the ring: what is read, kept, written and refused."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from edl_horovod.errors import DataError, Interrupted, JobFailed
from edl_horovod.files.marker import NAME
from edl_horovod.job.events import EvaluationEvent, EventLog, StepEvent
from edl_horovod.sql.jobs import find_jobs, request_kill
from edl_horovod.sql.statements import StatementError
from tests.component.sql.sessions import CLASSIFIED, TRAINED, rows_of, run, session_on
from tests.forked import fork

pytestmark = pytest.mark.long


@pytest.fixture
def session(database, ring, tmp_path):
    messages = []
    with session_on(database, tmp_path, ring, messages.append) as session:
        session.messages = messages
        yield session


def test_a_training_becomes_the_job_of_the_command_line(session, ring, tmp_path):
    (result,) = run(session, TRAINED)
    (config,) = ring.configs
    assert config.task == "train"
    assert config.model_def == "regressor.DNN"
    assert config.params == {"label": "salary"}
    assert str(tmp_path) not in config.model_zoo
    assert result.model == "m@1"
    assert any("'salary'" in sentence for sentence in session.messages)
    assert list((tmp_path / "models" / ".jobs").iterdir()) == []


def test_a_statement_runs_each_night(session, database, ring):
    nightly = "SELECT * FROM testdata PREDICT testdata.p USING m;"
    before = rows_of(database, "testdata")
    *_, result = run(session, TRAINED + nightly)
    assert result.model == "m@1"
    assert rows_of(database, "testdata") == [(*row, n) for n, row in enumerate(before)]
    database.run("INSERT INTO testdata (name, role) VALUES ('new', 'clerk')")
    assert rows_of(database, "testdata")[-1] == ("new", "clerk", None)
    run(session, nightly)
    assert rows_of(database, "testdata")[-1] == ("new", "clerk", 12.0)
    num_jobs = len(ring.configs)
    predicted, rows = run(
        session,
        "SELECT * FROM testdata WHERE p IS NULL PREDICT testdata.p USING m;"
        "SELECT name, role FROM testdata WHERE p IS NULL PREDICT USING m",
    )
    assert "no rows" in predicted.message
    assert (rows.columns, rows.rows) == (("name", "role", "prediction"), ())
    assert len(ring.configs) == num_jobs


def test_columns_that_the_model_does_not_read_come_back_as_they_were(session, database):
    database.run(
        "ALTER TABLE testdata ADD COLUMN hired DATE DEFAULT '2024-02-29'",
        "UPDATE testdata SET hired = NULL WHERE rowid = 2",
    )
    *_, result = run(session, TRAINED + "SELECT *, 1 / 3.0 AS n FROM testdata PREDICT USING m")
    assert result.columns == ("name", "role", "hired", "n", "prediction")
    assert result.rows[0] == ("n0", "clerk", "2024-02-29", 1 / 3.0, 0.0)
    assert result.rows[1][2] is None


def test_values_that_the_training_did_not_have_are_counted(session, database):
    database.run("UPDATE testdata SET role = 'judge' WHERE rowid IN (3, 7)")
    run(session, TRAINED + "SELECT name, role FROM testdata PREDICT USING m")
    assert session.messages[-1] == (
        "2 rows have values of 'role' that the training did not have, the first of them 'judge' in"
        " row 3: they count as unknown."
    )


def test_a_classifier_gives_the_class_and_its_probabilities(session, database):
    *_, rows = run(
        session,
        CLASSIFIED
        + "SELECT name, salary FROM employee PREDICT done.role WITH predict.probabilities=True "
        "USING c; SELECT * FROM done",
    )
    assert rows.columns[2:] == (
        "role",
        "role_probability_clerk",
        "role_probability_engineer",
        "role_probability_manager",
    )
    assert rows.rows[1] == ("n1", 1.0, "engineer", 0.0, 1.0, 0.0)


def test_the_probabilities_of_two_models_stand_side_by_side(session, database):
    text = "SELECT name, salary FROM employee PREDICT employee.{} WITH predict.probabilities=True"
    run(session, CLASSIFIED + text.format("first") + " USING c")
    before = rows_of(database, "employee")
    *_, rows = run(session, text.format("second") + " USING c; SELECT * FROM employee")
    assert [row[: len(before[0])] for row in rows.rows] == before
    assert len(rows.columns) == 3 + 2 * 4


def test_metrics_are_of_all_rows(session):
    *_, regression, classes, chosen = run(
        session,
        TRAINED + CLASSIFIED + "SELECT * FROM employee EVALUATE m LABEL salary;"
        "SELECT * FROM employee EVALUATE c;"
        "SELECT * FROM employee EVALUATE c WITH validation.metrics='Accuracy, AUC'",
    )
    assert regression.metrics == {"rmse": 0.0, "mae": 0.0, "r2": 1.0, "num_rows": 12.0}
    assert classes.metrics["accuracy"] == 1.0
    assert ("confusion", "clerk", "clerk", 4.0) in classes.rows
    assert [row[0] for row in chosen.rows] == ["accuracy", "auc"]


def test_metrics_and_importances_go_into_tables(session, database):
    evaluated = 'SELECT * FROM employee EVALUATE c LABEL role INTO "how good";'
    *_, stored, explained, rows, columns = run(
        session,
        CLASSIFIED
        + evaluated
        + 'SELECT * FROM employee EXPLAIN c INTO why; SELECT * FROM "how good"; SELECT * FROM why',
    )
    assert stored.message.startswith("The table how good has ")
    assert explained.message == "The table why has 2 rows of c@1."
    assert ("accuracy", None, None, 1.0) in [row[2:] for row in rows.rows]
    assert rows.columns == ("model", "evaluated", "metric", "class", "predicted", "value")
    assert {row[2] for row in columns.rows} == {"name", "salary"}
    counted = 'SELECT model, count(*) AS n FROM "how good" GROUP BY model ORDER BY model'
    num_rows = len(rows.rows)
    *_, count = run(session, CLASSIFIED + evaluated + counted)
    assert count.rows == (("c@1", num_rows), ("c@2", num_rows))
    again = evaluated.replace("LABEL", "WITH validation.overwrite=True LABEL")
    *_, count = run(session, again + counted)
    assert count.rows == (("c@2", num_rows),)


def test_columns_are_explained(session):
    *_, result = run(session, TRAINED + "SELECT * FROM employee EXPLAIN m")
    assert result.columns == ("column", "importance", "deviation")
    assert [row[0] for row in result.rows] == [
        importance.column for importance in result.importances
    ]
    assert sorted(row[0] for row in result.rows) == ["name", "role"]


def test_an_unknown_metric_is_refused(session):
    with pytest.raises(StatementError, match="'accuracy'"):
        run(
            session,
            CLASSIFIED + "SELECT * FROM employee EVALUATE c WITH validation.metrics='acuracy'",
        )


def test_rows_are_held_back_for_the_validation(session, ring):
    text = TRAINED.replace("INTO", "WITH train.split='sequential', train.split_fraction=0.25 INTO")
    *_, result = run(session, text)
    (config,) = ring.configs
    assert config.validation_data
    assert result.metrics == {"loss": 0.5}
    assert result.message == "m@1 is trained on 9 rows, with 3 held back, and it is live."
    *_, described = run(session, "DESCRIBE MODEL m")
    assert ("training", "split", "sequential: 25% held back") in described.rows
    assert ("training", "rows", 9) in described.rows


def test_a_training_goes_on_from_a_model(session, ring):
    run(session, TRAINED + TRAINED.replace("INTO m", "USING m INTO better"))
    assert ring.configs[1].init_from.endswith("/m/1/model")


def test_a_model_that_is_there_is_not_trained_again(session, ring):
    *_, result = run(session, TRAINED + TRAINED.replace("INTO", "INTO IF NOT EXISTS"))
    assert len(ring.configs) == 1
    assert (result.message, result.model) == ("The model m exists already.", "m")


def test_versions_are_listed_with_their_metrics_made_live_again_and_dropped(session, ring):
    validated = TRAINED.replace("INTO", "WITH train.split='sequential' INTO")
    *_, listed, altered, then, _, dropped, left = run(
        session,
        TRAINED
        + validated
        + "SHOW MODELS; ALTER MODEL m@1 SET LIVE; SHOW MODELS;"
        + "SELECT name, role FROM testdata PREDICT USING m; DROP MODEL m; SHOW MODELS",
    )
    assert [row[:3] for row in listed.rows] == [("m", 1, False), ("m", 2, True)]
    assert [row["metrics"] for row in listed.dicts()] == ["", "loss=0.5"]
    assert [row["live"] for row in listed.dicts()] == [False, True]
    assert altered.model == "m@1"
    assert [row["live"] for row in then.dicts()] == [True, False]
    assert ring.configs[-1].trained_model.endswith("/m/1/model")
    assert (dropped.message, left.rows) == ("m is removed.", ())


def test_the_log_of_a_training_has_a_row_for_each_step_that_was_told(session, ring):
    def write_events():
        with EventLog(Path(ring.configs[-1].job_dir) / "events.jsonl", "worker") as log:
            step = {"total_steps": 4, "records_per_second": 9.0, "records_seen": 3, "size": 1}
            log.write(StepEvent(step=1, epoch=0, loss=0.9, metrics={}, **step))
            log.write(StepEvent(step=2, epoch=0, loss=0.5, metrics={}, **step))
            log.write(EvaluationEvent(step=2, metrics={"loss": 0.6, "rmse": 2.0}, examples=3))
            log.write(StepEvent(step=4, epoch=1, loss=None, metrics={}, **step))

    ring.before_it_ends = write_events
    _, shown, trials = run(session, TRAINED + "SHOW LOG m; SHOW TRIALS m")
    assert shown.columns == (
        "step",
        "epoch",
        "seconds",
        "loss",
        "validation_loss",
        "validation_rmse",
    )
    assert [(*row[:2], *row[3:]) for row in shown.rows] == [
        (1, 1, 0.9, None, None),
        (2, 1, 0.5, 0.6, 2.0),
        (4, 2, None, None, None),
    ]
    assert trials.rows == ()


def test_a_dry_run_shows_settings_and_changes_nothing(session, ring, database, tmp_path):
    run(session, TRAINED)
    session.context.is_dry_run = True
    trained, predicted, dropped, other = run(
        session,
        TRAINED
        + "SELECT name, role FROM testdata PREDICT testdata.p USING m; DROP MODEL m;"
        + "DELETE FROM employee",
    )
    assert ": regressor.DNN" in trained.message
    assert "testdata gets p" in predicted.message
    assert dropped.message == "This would remove m with all of its versions."
    assert other.message.startswith("This would run on ")
    assert other.message.endswith(": DELETE FROM employee")
    assert len(ring.configs) == 1
    assert len(rows_of(database, "employee")) == 12


def test_a_failed_job_leaves_its_logs_and_no_rows(session, ring, tmp_path):
    def fail():
        raise JobFailed("The ring fell.")

    ring.before_it_ends = fail
    with pytest.raises(JobFailed):
        run(session, TRAINED)
    (left,) = find_jobs(tmp_path / "models")
    assert (left.number, left.title, left.is_running) == (1, "TRAIN m", False)
    assert {path.name for path in left.job_dir.parent.iterdir()} >= {"job"}
    assert not (left.job_dir.parent / "data").exists()
    *_, jobs = run(session, "SHOW JOBS")
    assert [row[:3] for row in jobs.rows] == [(1, "TRAIN m", "failed")]
    with pytest.raises(StatementError, match="No job 1"):
        run(session, "KILL 1")


def test_a_killed_statement_ends_and_leaves_nothing(session, ring, tmp_path):
    ring.before_it_ends = lambda: request_kill(tmp_path / "models", 1)
    with pytest.raises(Interrupted, match="KILL 1"):
        run(session, TRAINED)
    assert find_jobs(tmp_path / "models") == ()
    assert session.context.store.names() == ()


def test_the_rows_that_a_dead_process_left_are_removed(session, ring, tmp_path):
    ring.before_it_ends = lambda: os.kill(os.getpid(), signal.SIGKILL)
    child = fork(lambda: run(session, TRAINED))
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    left = tmp_path / "models" / ".jobs" / "1"
    assert (left / "data").is_dir()
    assert session.context.store.names() == ()
    ring.before_it_ends = lambda: None
    (result,) = run(session, TRAINED)
    assert result.model == "m@1"
    assert {path.name for path in left.iterdir()} <= {"job", "statement.json", ".lock", NAME}
    assert (left / "job").is_dir()


def test_rows_on_their_way_are_for_their_user_alone(session, ring, tmp_path):
    modes = []
    jobs = tmp_path / "models" / ".jobs"
    ring.before_it_ends = lambda: modes.extend(path.stat().st_mode for path in jobs.iterdir())
    (result,) = run(session, TRAINED)
    assert [mode & 0o077 for mode in modes] == [0]
    trained = tmp_path / "models" / "m" / "1"
    assert (result.model, trained.stat().st_mode & 0o777) == ("m@1", 0o777 & ~umask())


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_rows_of_another_machine_are_removed_only_where_nothing_is_heard_of_it(
    session, ring, tmp_path
):
    ring.before_it_ends = lambda: os.kill(os.getpid(), signal.SIGKILL)
    child = fork(lambda: run(session, TRAINED))
    os.waitpid(child, 0)
    job = tmp_path / "models" / ".jobs" / "1"
    entry = json.loads((job / "statement.json").read_bytes())
    (job / "statement.json").write_text(json.dumps(entry | {"boot": "another machine's"}))
    ring.before_it_ends = lambda: None
    run(session, TRAINED)
    assert (job / "data").is_dir()
    long_ago = time.time() - 3_600
    os.utime(job / ".lock", (long_ago, long_ago))
    run(session, TRAINED)
    assert not (job / "data").exists()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_predictions_that_the_database_refused_are_written_later(request, ring, tmp_path, engine):
    database = request.getfixturevalue(engine)
    database.run(
        "CREATE TABLE employee (name TEXT, role TEXT, salary REAL)",
        "INSERT INTO employee VALUES ('Ann', 'clerk', 1), ('Bob', 'manager', 2)",
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name TEXT, role TEXT)",
        "INSERT INTO testdata VALUES (1, 'Cyd', 'clerk'), (2, 'Dan', 'manager')",
    )
    predict = "SELECT * FROM testdata ORDER BY id PREDICT testdata.p USING m;"

    def hide(*_):
        session.context.tell = lambda sentence: None
        database.run("ALTER TABLE testdata RENAME TO hidden")

    with session_on(database, tmp_path, ring) as session:
        run(session, TRAINED)
        ring.before_it_ends = hide
        with pytest.raises(DataError):
            run(session, predict)
        database.run("ALTER TABLE hidden RENAME TO testdata")
        num_jobs = len(ring.configs)
        session.context.tell = hide  # As soon as the rows were read.
        with pytest.raises(DataError):
            run(session, predict)
        database.run("ALTER TABLE hidden RENAME TO testdata")
        assert "p" not in database.schema()["testdata"]
        run(session, predict)
        assert database.run("SELECT id, p FROM testdata ORDER BY id") == [(1, 0.0), (2, 1.0)]
        assert len(ring.configs) == num_jobs
        ring.before_it_ends = lambda: None
        run(session, predict)  # They are written, so they are not there a second time.
        assert len(ring.configs) == num_jobs + 1


def test_predictions_of_rows_that_have_changed_are_not_written_later(session, database, ring):
    predict = "SELECT name, role FROM testdata PREDICT testdata.p USING m;"
    run(session, TRAINED)
    ring.before_it_ends = lambda: database.run("ALTER TABLE testdata RENAME TO hidden")
    with pytest.raises(DataError):
        run(session, predict)
    database.run(
        "ALTER TABLE hidden RENAME TO testdata",
        "UPDATE testdata SET role = 'manager' WHERE name = 'n0'",
    )
    ring.before_it_ends = lambda: None
    num_jobs = len(ring.configs)
    run(session, predict)
    assert len(ring.configs) == num_jobs + 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted])
def test_an_interrupt_leaves_nothing(session, ring, tmp_path, error):
    def interrupt():
        raise error(f"To go on: edl resume {ring.configs[-1].job_dir}")

    ring.before_it_ends = interrupt
    with pytest.raises(Interrupted) as caught:
        run(session, TRAINED)
    assert str(tmp_path) not in str(caught.value)
    assert list((tmp_path / "models" / ".jobs").iterdir()) == []


def test_a_null_counts_as_what_the_training_said(session, database, ring):
    database.run(
        "UPDATE employee SET role = NULL WHERE rowid = 2",
        "UPDATE testdata SET role = NULL WHERE rowid = 3",
    )
    with pytest.raises(DataError, match="'role' in 1"):
        run(session, TRAINED)
    text = TRAINED.replace("INTO", "WITH train.nulls={'role': 'none'} INTO")
    *_, result = run(session, text + "SELECT name, role FROM testdata PREDICT USING m")
    assert result.rows[2] == ("n2", None, 2.0)
    assert ring.rows[-1][2]["role"] == "none"
