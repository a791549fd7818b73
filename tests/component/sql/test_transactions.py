"""A session of statements: its transaction, its temporary tables and what SET changes."""

import os
import signal
import threading

import pytest

from edl_horovod.cli.main import main
from edl_horovod.errors import DataError, Interrupted
from edl_horovod.sql.statements import StatementError
from tests import databases
from tests.component.sql.sessions import ROLES, Ring, run, session_on

ENGINES = ("sqlite", "postgresql", "mariadb", "duckdb")
TRAINED = "SELECT name, role, salary FROM employee TRAIN regressor.DNN INTO m"


@pytest.fixture
def duckdb(tmp_path):
    return databases.Database(f"duckdb:///{tmp_path}/some.duckdb")


@pytest.fixture(params=ENGINES)
def people(request):
    database = request.getfixturevalue(request.param)
    rows = ", ".join(f"('n{n}', '{ROLES[n % 3]}', {n})" for n in range(12))
    database.run(
        "CREATE TABLE employee (name VARCHAR(20) PRIMARY KEY, role VARCHAR(20), salary REAL)",
        f"INSERT INTO employee VALUES {rows}",
    )
    return database


@pytest.fixture
def session(people, tmp_path):
    with session_of(people, tmp_path) as session:
        yield session


def session_of(database, tmp_path, **tell):
    return session_on(database, tmp_path, Ring(), **tell)


def count(database):
    return database.run("SELECT count(*) FROM employee")[0][0]


def test_a_rollback_undoes_what_the_transaction_did(people, tmp_path):
    places = [f"db={people.url}", f"models={tmp_path}/models"]
    assert main(["sql", "BEGIN; DELETE FROM employee; ROLLBACK;", *places]) == 0
    assert count(people) == 12
    assert main(["sql", "BEGIN; DELETE FROM employee; COMMIT;", *places]) == 0
    assert count(people) == 0


def test_a_transaction_that_no_commit_ends_is_rolled_back_and_that_is_told(people, tmp_path):
    messages = []
    with session_of(people, tmp_path, tell=messages.append) as session:
        *_, result = run(session, "BEGIN; DELETE FROM employee; SELECT count(*) AS n FROM employee")
        assert result.rows == ((0,),)
    assert count(people) == 12
    assert "BEGIN" in messages[-1]
    with session_of(people, tmp_path, tell=messages.append) as session:
        run(session, "BEGIN; COMMIT")
    assert len(messages) == 1


@pytest.mark.long
def test_statements_with_jobs_are_refused_within_a_transaction_and_run_after_it(people, session):
    run(session, f"{TRAINED}; BEGIN; DELETE FROM employee WHERE salary > 5")
    for text in (
        TRAINED,
        "SELECT name, role FROM employee PREDICT employee.p USING m",
        "SELECT * FROM employee EVALUATE m LABEL salary",
        "SELECT * FROM employee EXPLAIN m",
        "SELECT salary, salary AS p FROM employee EVALUATE LABEL salary USING p",
    ):
        with pytest.raises(StatementError, match=r"BEGIN(.|\n)*COMMIT"):
            run(session, text)
    *_, result = run(session, f"COMMIT; {TRAINED}; SELECT name, role FROM employee PREDICT USING m")
    assert len(result.rows) == 6
    run(session, f"BEGIN; DELETE FROM employee; ROLLBACK; {TRAINED}")
    assert count(people) == 6


@pytest.mark.long
def test_a_failed_transaction_is_open_until_it_is_rolled_back(session):
    with pytest.raises(DataError):
        run(session, "BEGIN; DELETE FROM employee; SELECT nothing FROM employee")
    with pytest.raises(StatementError, match="BEGIN"):
        run(session, TRAINED)
    *_, result = run(session, f"ROLLBACK; {TRAINED}")
    assert result.message.startswith("m@1 is trained on 12 rows")


@pytest.mark.long
def test_a_temporary_table_is_there_for_all_later_statements(session):
    *_, result, evaluated = run(
        session,
        "CREATE TEMPORARY TABLE few AS SELECT * FROM employee WHERE salary < 7;"
        "SELECT name, role, salary FROM few TRAIN regressor.DNN INTO m;"
        "SELECT name, role FROM few PREDICT USING m;"
        "SELECT * FROM few EVALUATE m LABEL salary",
    )
    assert len(result.rows) == 7
    assert evaluated.metrics["num_rows"] == 7


@pytest.mark.long
def test_predictions_within_a_session_leave_nothing_of_ours(people, session, request):
    name = request.node.callspec.params["people"]
    if name == "duckdb":
        pytest.skip("DuckDB takes no predictions")
    run(session, f"SELECT 1 AS one; {TRAINED}; {TRAINED}")
    run(session, "SELECT name, role FROM employee PREDICT employee.p USING m")
    run(session, "SELECT name, role FROM employee PREDICT made USING m")
    *_, result = run(session, "DELETE FROM employee WHERE p > 5; SELECT count(*) AS n FROM made")
    assert result.rows == ((12,),)
    assert count(people) == 6
    if name == "sqlite":
        *_, result = run(session, "SELECT name FROM sqlite_temp_master")
        assert result.rows == ()
    if name == "postgresql":
        *_, result = run(session, "SELECT relname FROM pg_class WHERE relpersistence = 't'")
        assert result.rows == ()


@pytest.mark.long
def test_what_set_changes_holds_for_later_statements(postgresql, tmp_path):
    postgresql.run(
        "CREATE SCHEMA hr",
        "CREATE TABLE hr.employee (name TEXT PRIMARY KEY, role TEXT, salary REAL)",
        "INSERT INTO hr.employee SELECT 'n' || i, 'clerk', i FROM generate_series(1, 4) AS i",
    )
    with session_of(postgresql, tmp_path) as session:
        run(session, f"SET search_path TO hr; {TRAINED}")
        *_, result = run(
            session,
            "SELECT name, role FROM employee PREDICT employee.p USING m;"
            "SELECT name, role FROM employee PREDICT made USING m",
        )
    assert result.message.startswith("4 rows of made")
    assert postgresql.run("SELECT count(p) FROM hr.employee") == [(4,)]
    assert postgresql.run("SELECT count(*) FROM hr.made") == [(4,)]


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_lost_connection_is_told_and_the_next_statement_gets_a_new_one(request, name, tmp_path):
    database = request.getfixturevalue(name)
    database.run("CREATE TABLE t (x INTEGER)")
    with session_of(database, tmp_path) as session:
        number = "pg_backend_pid()" if name == "postgresql" else "connection_id()"
        *_, result = run(session, f"BEGIN; INSERT INTO t VALUES (1); SELECT {number} AS n")
        kill = "SELECT pg_terminate_backend({})" if name == "postgresql" else "KILL {}"
        database.run(kill.format(result.rows[0][0]))
        with pytest.raises(DataError, match="rolled back"):
            run(session, "INSERT INTO t VALUES (2)")
        run(session, "INSERT INTO t VALUES (3)")
    assert database.run("SELECT x FROM t") == [(3,)]


def test_ctrl_c_that_ends_the_connection_says_so(mariadb, tmp_path):
    with session_of(mariadb, tmp_path) as session:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(Interrupted, match="rolled back"):
            run(session, "BEGIN; SELECT sleep(60)")
        *_, result = run(session, "SELECT 1 AS one")
        assert result.rows == ((1,),)


def test_cells_of_a_notebook_share_a_transaction(sqlite, tmp_path):
    from edl_horovod.sql.magic import load_ipython_extension

    magics = {}

    class Shell:
        def register_magic_function(self, function, kind, name):
            magics[name] = function

    sqlite.run("CREATE TABLE t (x INTEGER)")
    load_ipython_extension(Shell())
    places = f"db={sqlite.url} models={tmp_path}/models"
    magics["edl"](places, "BEGIN; INSERT INTO t VALUES (1)")
    assert magics["edl"]("launch.np=2", "SELECT count(*) AS n FROM t").rows == ((1,),)
    magics["edl"]("", "ROLLBACK")
    assert magics["edl"]("", "SELECT count(*) AS n FROM t").rows == ((0,),)
