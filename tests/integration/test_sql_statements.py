"""The two statements of the reference on sqlite: whole jobs, the table before and after."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import edl_horovod
from edl_horovod.job.events import JobEvent, WorkerEvent
from edl_horovod.sql.jobs import find_jobs
from edl_horovod.sql.statements import StatementError
from tests import databases
from tests.frameworks import NEEDS_KERAS
from tests.sql_service import children_of
from tests.waiting import is_running, wait_until

REPOSITORY = Path(__file__).parents[2]
TRAINED = """SELECT name, role, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01{more}
INTO my_trained_model;"""
PREDICTED = """SELECT name, role FROM testdata
PREDICT testdata.predicted_salary
USING my_trained_model;"""
PAY = {"engineer": 100.0, "manager": 150.0, "clerk": 60.0}
ROLES = tuple(PAY)


def rows_of(database, table):
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid").fetchall()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a database, and a model that the command trained."""
    pytest.importorskip("keras", reason="make setup FRAMEWORKS=tensorflow")
    folder = tmp_path_factory.mktemp("sql")
    with contextlib.closing(sqlite3.connect(folder / "hr.db")) as connection, connection:
        connection.execute("CREATE TABLE employee (name TEXT, role TEXT, salary REAL)")
        connection.execute("CREATE TABLE testdata (name TEXT, role TEXT, age INTEGER)")
        connection.executemany(
            "INSERT INTO employee VALUES (?, ?, ?)",
            [(f"n{n % 40}", ROLES[n % 3], PAY[ROLES[n % 3]] + n % 5) for n in range(240)],
        )
        connection.executemany(
            "INSERT INTO testdata VALUES (?, ?, ?)",
            [(f"n{n % 40}", ROLES[n % 3], 20 + n) for n in range(30)],
        )
    run(folder, TRAINED.format(more=", train.epochs=60, train.batch_size=40"))
    return folder


def command(folder, text, *settings):
    places = (f"db=sqlite:///{folder}/hr.db", f"models={folder}/models")
    return [sys.executable, "-m", "edl_horovod", "sql", text, *places, *settings]


def run(folder, text, *settings, seconds=240):
    """What the command prints for some statements, as JSON, a line for each."""
    words = command(folder, text, "-o", "json", *settings)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds, cwd=folder, env=environment
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_predictions_stand_in_the_column_and_nothing_else_changed(trained):
    before = rows_of(trained / "hr.db", "testdata")
    employees = rows_of(trained / "hr.db", "employee")
    (outcome,) = run(trained, PREDICTED)
    after = rows_of(trained / "hr.db", "testdata")
    assert outcome["model"] == "my_trained_model@1"
    assert [row[:4] for row in after] == before
    assert rows_of(trained / "hr.db", "employee") == employees
    for _, _, role, _, predicted in after:
        assert predicted == pytest.approx(PAY[role] + 2, abs=15)
    with contextlib.closing(sqlite3.connect(trained / "hr.db")) as connection, connection:
        tables = connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    assert tables == [("employee",), ("testdata",)]
    assert [path.name for path in (trained / "models").iterdir() if path.name != ".jobs"]
    assert list((trained / "models" / ".jobs").iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_model_is_listed_described_and_measured(trained):
    program = """SHOW MODELS; SHOW LOG my_trained_model;
    DESCRIBE MODEL my_trained_model; SHOW TRAIN my_trained_model;
    SELECT * FROM employee EVALUATE my_trained_model WITH validation.metrics='r2,rmse' LABEL salary;
    SELECT name, role FROM testdata WHERE role = 'manager' LIMIT 3 PREDICT USING my_trained_model"""
    models, log, described, shown, measured, predicted = run(trained, program)
    (row,) = models["rows"]
    assert row[:7] == ["my_trained_model", 1, True, "regressor.DNN", "keras", "salary", 218]
    assert log["rows"][0][0] == 1
    assert log["rows"][-1][:2] == [360, 60]
    facts = {(part, name): value for part, name, value in described["rows"]}
    assert facts["label", "salary"] == "number (REAL)"
    assert facts["column", "role"] == "text (TEXT)"
    assert facts["training", "select"] == "SELECT name, role, salary FROM employee"
    assert "learning_rate=0.01" in shown["rows"][0][1]
    assert measured["metrics"]["r2"] > 0.8
    assert [row[0] for row in measured["rows"]] == ["rmse", "r2"]
    assert predicted["columns"] == ["name", "role", "prediction"]
    assert [row[2] == pytest.approx(152, abs=15) for row in predicted["rows"]] == [True] * 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_second_prediction_waits_for_no_import(trained):
    before = list(filter(is_running, children_of(os.getpid())))
    waits, running = [], 0.0

    def on_events(events):
        nonlocal running
        for moment, _, event in events:
            if isinstance(event, JobEvent) and event.state == "running":
                running = moment
            if isinstance(event, WorkerEvent) and event.state == "started":
                waits.append(moment - running)

    predicted = "SELECT name, role FROM testdata PREDICT USING my_trained_model;"
    places = {"db": f"sqlite:///{trained}/hr.db", "models": trained / "models"}
    assert len(edl_horovod.sql(2 * predicted, on_events=on_events, **places)) == 30
    first, second = waits
    assert second < first / 2
    assert list(filter(is_running, children_of(os.getpid()))) == before


@pytest.mark.timeout(600)
@pytest.mark.further
def test_a_training_goes_on_from_the_weights_of_a_model(trained):
    options = ", train.epochs=1, train.batch_size=40, engine.num_workers=2\nUSING my_trained_model"
    text = TRAINED.format(more=options).replace("INTO my_trained_model", "INTO better")
    *_, measured, _ = run(
        trained, text + "SELECT * FROM employee EVALUATE better; DROP MODEL better"
    )
    # From weights of its own, one epoch is far from enough.
    assert measured["metrics"]["r2"] > 0.8


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_call_in_python_gives_rows_and_refuses_what_does_not_fit(trained):
    places = {"db": f"sqlite:///{trained}/hr.db", "models": trained / "models"}
    models_table = edl_horovod.sql("SELECT count(*) AS n FROM employee; SHOW MODELS", **places)
    assert models_table.dicts()[0]["name"] == "my_trained_model"
    with pytest.raises(StatementError, match="'role'"):
        edl_horovod.sql("SELECT name FROM testdata PREDICT t.c USING my_trained_model", **places)
    with pytest.raises(StatementError, match="'role' holds"):
        edl_horovod.sql(
            "SELECT name, age AS role FROM testdata PREDICT USING my_trained_model", **places
        )
    none = edl_horovod.sql(
        "SELECT name, role FROM testdata WHERE 0 PREDICT USING my_trained_model", **places
    )
    assert len(none) == 0


VARIED = """SELECT name, role, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=HPARAM_CANDIDATES([[10], [20, 5]]), learning_rate={rates}, train.epochs=20,
    train.batch_size=40, train.split='random', train.split_fraction=0.2, engine.num_workers=2{more}
LABEL salary INTO tuned;"""


@pytest.mark.parametrize(
    ("rates", "options", "num_trials"),
    [
        ("HPARAM_CANDIDATES([0.01])", "", 2),
        pytest.param(
            "HPARAM_RANGE(0.0001, 0.05, 'log')",
            ", sweep.num_trials=3, sweep.seed=1",
            3,
            marks=pytest.mark.further,
        ),
    ],
    ids=["combinations", "search"],
)
@pytest.mark.timeout(600)
@pytest.mark.further
def test_the_best_of_several_trainings_on_a_ring_becomes_the_version(
    trained, tmp_path, rates, options, num_trials
):
    shutil.copy(trained / "hr.db", tmp_path)
    predicted, described, measured, jobs, log = run(
        tmp_path,
        VARIED.format(rates=rates, more=options)
        + "DESCRIBE MODEL tuned; SELECT * FROM employee EVALUATE tuned; SHOW JOBS; SHOW LOG tuned",
        seconds=500,
    )
    facts = [row[1:] for row in described["rows"] if row[0] == "trial"]
    losses = [float(text.partition("loss=")[2].split(",")[0]) for _, text in facts]
    assert len(losses) == num_trials
    assert predicted["metrics"]["loss"] == pytest.approx(min(losses), rel=1e-4)
    chosen = {name: value for part, name, value in described["rows"] if part == "chosen"}
    best = facts[losses.index(min(losses))][1]
    assert best.startswith(", ".join(f"{name}={value}" for name, value in chosen.items()))
    settings = (tmp_path / "models" / "tuned" / "1" / "model" / "config.yaml").read_text()
    assert f"learning_rate: {chosen['learning_rate']}" in settings
    assert "np: 2" in settings
    assert measured["metrics"]["num_rows"] == 240
    assert jobs["rows"] == []
    assert log["rows"][-1][0] == 20 * 5
    assert log["columns"][-1].startswith("validation_")
    assert list((tmp_path / "models" / ".jobs").iterdir()) == []


@dataclass(frozen=True)
class Ended:
    """A statement that somebody ends while it trains."""

    text: str
    title: str
    """As SHOW JOBS has it then."""


ENDED = {
    "one training": Ended(
        TRAINED.format(more=", train.epochs=100000, train.split='none', engine.num_workers=2"),
        "TRAIN my_trained_model",
    ),
    "trials": Ended(
        VARIED.format(
            rates="HPARAM_CANDIDATES([0.01])", more=", train.early_stopping.patience=1000000"
        ).replace("train.epochs=20", "train.epochs=HPARAM_CANDIDATES([1, 100000])"),
        "TRAIN tuned, trial 2 of 4",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("ctrl-c", "one training"),
        pytest.param("ctrl-c", "trials", marks=pytest.mark.further),
        pytest.param("kill", "one training", marks=pytest.mark.further),
        pytest.param("kill", "trials", marks=pytest.mark.further),
    ],
)
@pytest.mark.timeout(600)
def test_a_training_that_is_ended_leaves_nothing(trained, tmp_path, how, name):
    case = ENDED[name]
    shutil.copy(trained / "hr.db", tmp_path)
    process = subprocess.Popen(
        command(tmp_path, case.text),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )
    try:

        def is_training():
            assert process.poll() is None, process.stderr.read()
            return trains(tmp_path, case.title)

        wait_until(is_training, seconds=120)
        (jobs,) = run(tmp_path, "SHOW JOBS")
        assert [row[:3] for row in jobs["rows"]] == [[1, case.title, "running"]]
        if how == "kill":
            run(tmp_path, "KILL 1")
        else:
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, said
    assert ("KILL 1" in said) == (how == "kill")
    models, jobs = run(tmp_path, "SHOW MODELS; SHOW JOBS")
    assert (models["rows"], jobs["rows"]) == ([], [])
    assert list((tmp_path / "models" / ".jobs").iterdir()) == []


def trains(folder, name):
    """Whether the job of a statement has come to its steps."""
    for job in find_jobs(folder / "models"):
        events = job.job_dir / "events.jsonl"
        if job.title == name:
            return events.exists() and '"step"' in events.read_text()
    return False


@pytest.mark.timeout(900)
@pytest.mark.further
@NEEDS_KERAS
def test_the_tutorial_goes_from_nothing_to_a_predicted_column(tmp_path):
    page = (REPOSITORY / "docs" / "tutorials" / "sql.md").read_text()
    script = page.partition("```bash\n")[2].partition("```")[0]
    assert len(script.splitlines()) == 10
    programs = tmp_path / "bin"
    programs.mkdir()
    edl = programs / "edl"
    edl.write_text(f'#!/bin/sh\nexec {sys.executable} -m edl_horovod "$@"\n')
    edl.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    work = tmp_path / "work"
    work.mkdir()
    ended = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    rows = rows_of(work / "hr.db", "testdata")
    assert len(rows) == 9
    for _, _, role, predicted in rows:
        assert predicted == pytest.approx(PAY[role] + 2, abs=15)


@pytest.mark.long
@pytest.mark.timeout(900)
@NEEDS_KERAS
def test_the_reference_on_postgresql_leaves_no_password_anywhere(postgresql_server, tmp_path):
    database = databases.new_database(postgresql_server, "postgres")
    rows = ", ".join(
        f"('n{n % 40}', '{ROLES[n % 3]}', {PAY[ROLES[n % 3]] + n % 5})" for n in range(240)
    )
    database.run(
        "CREATE TABLE employee (name text, role text, salary float8)",
        f"INSERT INTO employee VALUES {rows}",
        "CREATE TABLE testdata (id serial PRIMARY KEY, name text, role text)",
        "INSERT INTO testdata (name, role) SELECT name, role FROM employee LIMIT 12",
    )
    before = database.run("SELECT id, name, role FROM testdata ORDER BY id")
    program = TRAINED.format(more=", train.epochs=60, train.batch_size=40") + PREDICTED
    failing = TRAINED.replace("[10, 100, 20, 5]", "[-1]").format(more="")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "EDL_DB": database.url}
    said = ""
    for text, code in ((program, 0), (failing, 2)):
        words = [sys.executable, "-m", "edl_horovod", "sql", text, f"models={tmp_path}/models"]
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=400, cwd=tmp_path, env=environment
        )
        said += ended.stdout + ended.stderr
        assert ended.returncode == code, said
    after = database.run("SELECT id, name, role, predicted_salary FROM testdata ORDER BY id")
    assert [row[:3] for row in after] == before
    for _, _, role, predicted in after:
        assert predicted == pytest.approx(PAY[role] + 2, abs=15)
    # What failed has left its settings, events and logs.
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.yaml", "events.jsonl", "about.json", "worker-0.log"} <= {
        path.name for path in files
    }
    texts = {str(path): path.read_bytes().decode("latin-1") for path in files} | {"said": said}
    secrets = (databases.PASSWORD, databases.IN_URL, "geheim")
    assert [place for place, text in texts.items() for secret in secrets if secret in text] == []
