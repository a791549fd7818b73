"""The SQL service with real calls over loopback: statements, errors, access, order, limits."""

import contextlib
import datetime
import signal
import socket
import sqlite3

import grpc
import pytest

from edl_horovod.cli.main import main
from edl_horovod.sql.service.server import MAX_CALLS
from tests import databases
from tests.kube import certificates
from tests.sql_service import children_of, in_background, service, values
from tests.waiting import is_running, wait_until

LONG = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {most}) "
    "SELECT max(x) AS x FROM n"
)


def make_database(path):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE employee (name TEXT, salary REAL, age INT, photo BLOB)")
        connection.execute("INSERT INTO employee VALUES ('ann', 1.5, 31, x'00ff')")
        connection.execute("INSERT INTO employee VALUES (NULL, 2, -4, NULL)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("service")
    make_database(path / "hr.db")
    make_database(path / "other.db")
    (path / "databases").write_text(f"# allowed\n\nsqlite:///{path}/other.db\n")
    return path


@pytest.fixture(scope="module")
def running(folder):
    with service(folder, "--databases", str(folder / "databases"), "--sessions", "2") as served:
        yield served


def kinds(responses):
    return [response.WhichOneof("response") for response in responses]


def rows(responses):
    return [values(response.row) for response in responses if response.HasField("row")]


def is_answered(server, **session):
    with contextlib.suppress(grpc.RpcError):
        return rows(server.run("SELECT 1 AS one", **session)) == [[1]]
    return False


@pytest.mark.long
def test_each_statement_gives_its_head_its_rows_and_its_end(running):
    responses = running.run("SELECT * FROM employee;\nSELECT 1 AS one")
    assert kinds(responses) == ["head", "row", "row", "eoe", "head", "row", "eoe"]
    assert list(responses[0].head.column_names) == ["name", "salary", "age", "photo"]
    assert rows(responses) == [["ann", 1.5, 31, b"\x00\xff"], [None, 2.0, -4, None], [1]]
    assert [response.eoe.sql for response in responses if response.HasField("eoe")] == [
        "SELECT * FROM employee",
        "SELECT 1 AS one",
    ]


def test_a_statement_without_rows_gives_a_message(running):
    responses = running.run("UPDATE employee SET age = age; SHOW MODELS;")
    assert kinds(responses) == ["message", "eoe", "head", "eoe"]
    assert responses[0].message.message.startswith("2 rows")
    assert responses[3].eoe.sql == "SHOW MODELS"


@pytest.mark.parametrize(
    ("sql", "expected", "said"),
    [
        ("SELECT 1 TO TRAIN", "INVALID_ARGUMENT", "line 1, column 18"),
        (" ; ", "INVALID_ARGUMENT", "no statement"),
        ("SELECT nothing FROM employee", "FAILED_PRECONDITION", "nothing"),
        ("DESCRIBE MODEL m", "NOT_FOUND", "'m'"),
        (
            "SELECT salary, age FROM employee TRAIN regressor.DNN WITH train.epocs=1 INTO m",
            "INVALID_ARGUMENT",
            "'train.epochs'",
        ),
    ],
)
def test_an_error_ends_the_call_with_its_code(running, sql, expected, said):
    code, text = running.fail(sql)
    assert code == expected
    assert said in text


def test_what_was_done_before_an_error_is_told(running):
    with running.channel() as channel:
        call = in_background(running.start(channel, "SELECT 1 AS one; SELECT nothing"))
        assert [call.get(timeout=60).WhichOneof("response") for _ in range(3)] == [
            "head",
            "row",
            "eoe",
        ]
        assert call.get(timeout=60).code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_long_error_fits_into_what_clients_read(running):
    _, text = running.fail(f'SELECT * FROM "{"ü" * 5_000}"')
    assert "ü" in text


@pytest.mark.parametrize("token", ["", "wrong", "0123456789abcdef0123456789abcdeF", "ü"])
def test_a_call_without_the_token_is_refused(running, token):
    assert running.fail("SELECT 1", token=token)[0] == "UNAUTHENTICATED"


@pytest.mark.long
def test_a_client_may_name_an_allowed_database_alone(running, folder):
    running.run("UPDATE employee SET age = 77", db_conn_str=f"sqlite:///{folder}/other.db")
    counted = "SELECT count(*) AS n FROM employee WHERE age = 77"
    assert rows(running.run(counted, db_conn_str=f"sqlite:///{folder}/other.db")) == [[2]]
    assert rows(running.run(counted)) == [[0]]
    code, text = running.fail(counted, db_conn_str="mysql://root:hidden-word@host/db")
    assert code == "PERMISSION_DENIED"
    assert "hidden-word" not in text


REACHES_FILES = [
    "ATTACH '{folder}/new.db' AS reached",
    "ATTACH '{folder}' || '/new.db' AS reached",
    "VACUUM INTO '{folder}/new.db'",
    "SELECT load_extension('{folder}/new.so')",
    "SELECT load_extension('{folder}/new.so') AS a, age FROM employee TRAIN regressor.DNN INTO m",
    "PRAGMA temp_store_directory = '{folder}'",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
]


@pytest.mark.long
@pytest.mark.parametrize("sql", REACHES_FILES)
def test_a_client_reaches_no_file_but_the_database_of_sqlite(running, folder, sql):
    before = sorted(folder.iterdir())
    assert running.fail(sql.format(folder=folder))[0] == "FAILED_PRECONDITION"
    assert sorted(folder.iterdir()) == before


@pytest.mark.long
def test_a_client_of_sqlite_may_do_what_stays_in_the_database(folder):
    text = (
        "CREATE TABLE kept (id INTEGER PRIMARY KEY, word TEXT); "
        "INSERT INTO kept VALUES (1, 'a'); CREATE INDEX words ON kept (word); "
        "CREATE VIRTUAL TABLE texts USING fts5(body); "
        "VACUUM; ANALYZE; PRAGMA foreign_keys = ON; PRAGMA integrity_check; "
        "PRAGMA table_info(kept); DROP TABLE texts; DROP TABLE kept"
    )
    # Of its own: a session that has set something waits for its next call.
    with service(folder) as server:
        described = [row for row in rows(server.run(text)) if len(row) > 1]
    assert [row[1] for row in described] == ["id", "word"]


@pytest.mark.long
def test_a_client_reaches_no_file_through_duckdb(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    with duckdb.connect(str(tmp_path / "hr.duckdb")) as connection:
        connection.execute("CREATE TABLE employee AS SELECT 1 AS age, 2.5 AS salary")
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    refused = (
        "COPY employee TO '{folder}/new.csv'",
        "EXPORT DATABASE '{folder}/new'",
        "ATTACH '{folder}/new.duckdb' AS reached",
        "SELECT * FROM '{folder}/secret.csv'",
        "SELECT * FROM read_text('{folder}/secret.csv')",
        "SELECT * FROM read_csv('{folder}/secret.csv') TRAIN regressor.DNN INTO m",
        "SELECT * FROM glob('{folder}/*')",
        "INSTALL httpfs",
        "LOAD '{folder}/new.duckdb_extension'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA enable_profiling",
    )
    with service(tmp_path, EDL_DB=f"duckdb:///{tmp_path}/hr.duckdb") as server:
        assert rows(server.run("SELECT age, salary::DOUBLE FROM employee")) == [[1, 2.5]]
        before = sorted(tmp_path.iterdir())
        for sql in refused:
            code, text = server.fail(sql.format(folder=tmp_path))
            assert code == "FAILED_PRECONDITION", (sql, text)
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.long
def test_a_client_of_mariadb_sends_no_file_of_the_service(tmp_path, mariadb):
    mariadb.run("CREATE TABLE words (word TEXT)")
    (tmp_path / "secret.txt").write_text("a word\n")
    with service(tmp_path, EDL_DB=f"{mariadb.url}?local_infile=1") as server:
        load = f"LOAD DATA LOCAL INFILE '{tmp_path}/secret.txt' INTO TABLE words"
        assert server.fail(load)[0] == "FAILED_PRECONDITION"
    assert mariadb.run("SELECT * FROM words") == []


@pytest.mark.long
def test_a_client_sets_only_what_the_service_permits(running):
    train = "SELECT salary, age FROM employee TRAIN regressor.DNN WITH {} INTO m"
    for attribute in (
        "engine.kubernetes.context='other'",
        "engine.launch.np=500",
        "engine.num_workers=HPARAM_CANDIDATES([1, 500])",
        "loss='sample_images.write'",
    ):
        code, text = running.fail(train.format(attribute))
        assert (code, attribute.partition("=")[0] in text) == ("INVALID_ARGUMENT", True), text


@pytest.mark.long
def test_a_wish_that_is_not_followed_is_told_where_there_is_a_job(running):
    assert kinds(running.run("SELECT 1 AS one", exit_on_submit=True)) == ["head", "row", "eoe"]
    with running.channel() as channel:
        text = "SELECT salary, age FROM employee TRAIN no.Such INTO m"
        call = in_background(running.start(channel, text, exit_on_submit=True))
        assert "on_submit" in call.get(timeout=60).message.message
        assert call.get(timeout=60).code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.long
def test_calls_of_a_session_run_in_order(running):
    running.run("CREATE TABLE IF NOT EXISTS said (word TEXT); DELETE FROM said")
    with running.channel() as channel:
        slow = f"{LONG.format(most=1_000_000)}; INSERT INTO said VALUES ('first')"
        first = in_background(running.start(channel, slow, user_id="one"))
        wait_until(lambda: children_of(running.process.pid), "the first call")
        second = "INSERT INTO said VALUES ('second')"
        assert kinds(running.start(channel, second, user_id="one")) == ["message", "eoe"]
        assert first.qsize() == 6, "the second call did not wait"
    assert rows(running.run("SELECT word FROM said ORDER BY rowid")) == [["first"], ["second"]]


@pytest.mark.long
@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_a_session_keeps_its_transaction_and_temporary_tables_between_calls(
    request, tmp_path, name
):
    database = request.getfixturevalue(name)
    database.run("CREATE TABLE t (x INTEGER)")
    with (
        service(tmp_path, EDL_DB=database.url) as server,
        server.channel() as channel,
    ):

        def run(text, **session):
            return rows(server.start(channel, text, **session))

        run("BEGIN; INSERT INTO t VALUES (1)", user_id="ann")
        assert run("SELECT x FROM t", user_id="ann") == [[1]]
        assert run("SELECT x FROM t", user_id="bob") == []
        train = "SELECT x AS a, x AS b FROM t TRAIN regressor.DNN INTO m"
        code, text = server.fail(train, user_id="ann")
        assert (code, "BEGIN" in text) == ("INVALID_ARGUMENT", True)
        assert run("ROLLBACK; SELECT x FROM t", user_id="ann") == []
        wait_until(
            lambda: not children_of(server.process.pid),
            "the end of a session without state",
        )
        run("CREATE TEMPORARY TABLE few AS SELECT 7 AS x")
        assert run("SELECT x FROM few") == [[7]]
        run("BEGIN; INSERT INTO t VALUES (1)")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert database.run("SELECT x FROM t") == []


@pytest.mark.long
def test_a_session_whose_call_is_cancelled_tells_that_its_transaction_is_gone(running):
    with running.channel() as channel:
        list(running.start(channel, "BEGIN; DELETE FROM employee", user_id="one"))
        slow = f"SELECT 1 AS one; {LONG.format(most=500_000_000)}"
        call = running.start(channel, slow, user_id="one")
        assert in_background(call).get(timeout=60).HasField("head")
        call.cancel()
        wait_until(lambda: not children_of(running.process.pid), "the end of the session")
        code, text = running.fail("COMMIT", user_id="one")
    assert (code, "BEGIN" in text) == ("ABORTED", True)
    assert rows(running.run("SELECT count(*) AS n FROM employee", user_id="one")) == [[2]]


@pytest.mark.long
def test_more_sessions_than_allowed_are_refused_until_one_ends(running):
    with running.channel() as channel:
        calls = [
            running.start(channel, LONG.format(most=500_000_000), user_id=user) for user in "ab"
        ]
        for call in calls:
            in_background(call)
        wait_until(lambda: len(children_of(running.process.pid)) == 2, "two calls")
        code, text = running.fail("SELECT 1", user_id="c")
        assert code == "RESOURCE_EXHAUSTED"
        assert "2 sessions" in text
        later_calls = [running.start(channel, "SELECT 1", user_id="a") for _ in range(MAX_CALLS)]
        waiting = [in_background(call) for call in later_calls]
        assert waiting[-1].get(timeout=60).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in (*later_calls, *calls):
            call.cancel()
        wait_until(lambda: not children_of(running.process.pid), "the end of cancelled calls")
    # A session ends a moment after the process of its last call.
    wait_until(lambda: is_answered(running, user_id="c"), "room for another session")


def test_a_client_that_vanishes_ends_its_statement(running):
    with running.channel() as channel:
        in_background(running.start(channel, LONG.format(most=500_000_000)))
        wait_until(lambda: children_of(running.process.pid), "the call")
    wait_until(lambda: not children_of(running.process.pid), "the end of its process")


@pytest.mark.long
def test_silent_connections_keep_nobody_out_and_hold_up_no_end(folder):
    with service(folder, most_files=168) as server, contextlib.ExitStack() as silent:

        def open_silent_connections():
            host, port = server.address.rsplit(":", 1)
            for _ in range(150):
                silent.enter_context(socket.create_connection((host, int(port))))

        open_silent_connections()
        wait_until(lambda: is_answered(server), "a call beside silent connections", seconds=20)
        open_silent_connections()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


@pytest.mark.long
def test_calls_without_the_token_write_few_lines(folder):
    with service(folder) as server:
        with server.channel() as channel:
            for _ in range(30):
                with pytest.raises(grpc.RpcError):
                    list(server.start(channel, "SELECT 1", token="wrong"))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    lines = (folder / "service.log").read_text().splitlines()
    about = [line for line in lines if "token" in line]
    assert 1 <= len(about) <= 3
    assert "29" in about[-1], "the others are counted"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_service_and_what_runs(folder, number):
    with service(folder) as server, server.channel() as channel:
        call = in_background(server.start(channel, LONG.format(most=500_000_000)))
        wait_until(lambda: children_of(server.process.pid), "the call")
        started = children_of(server.process.pid)
        server.process.send_signal(number)
        assert server.process.wait(60) == 0
        assert call.get(timeout=60).code() is grpc.StatusCode.CANCELLED
        assert not any(map(is_running, started))


@pytest.mark.long
def test_tls_serves_who_trusts_its_certificate(folder, tmp_path):
    certificates.make(tmp_path)
    files = ("--certificate", f"{tmp_path}/server.crt", "--key", f"{tmp_path}/server.key")
    with service(folder, *files) as server:
        credentials = grpc.ssl_channel_credentials((tmp_path / "ca.crt").read_bytes())
        with server.channel(credentials) as channel:
            assert rows(server.start(channel, "SELECT 1 AS one")) == [[1]]
        with server.channel() as channel, pytest.raises(grpc.RpcError):
            list(server.start(channel, "SELECT 1 AS one", seconds=5))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--without-tls"),
        (["--certificate", "token"], "its key"),
        (["--port", "70000"], "between 0 and 65535"),
        (["--sessions", "0"], "--sessions=0"),
        (["launch.npp=2"], "launch.np"),
        (["--certificate", "token", "--key", "token"], "--certificate and --key"),
    ],
)
def test_what_cannot_be_served_is_an_error(folder, monkeypatch, capsys, words, said):
    monkeypatch.chdir(folder)
    (folder / "token").write_text("0123456789abcdef")
    places = ["--token-file", "token", "db=sqlite:///hr.db", f"models={folder}/models"]
    assert main(["serve-sql", *places, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(("token", "said"), [("", "EDL_SQL_TOKEN"), ("short", "16 characters")])
def test_a_token_is_needed(folder, monkeypatch, capsys, token, said):
    monkeypatch.setenv("EDL_SQL_TOKEN", token)
    assert main(["serve-sql", f"db=sqlite:///{folder}/hr.db"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "short" not in err


@pytest.mark.long
def test_a_service_that_is_killed_takes_its_statements_along(folder):
    with service(folder) as server, server.channel() as channel:
        in_background(server.start(channel, LONG.format(most=500_000_000)))
        wait_until(lambda: children_of(server.process.pid), "the call")
        started = children_of(server.process.pid)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(map(is_running, started)), "the end of the call")


@pytest.mark.long
def test_moments_of_postgresql_are_timestamps_and_its_password_is_not_told(tmp_path, postgresql):
    with service(tmp_path, EDL_DB=postgresql.url) as server:
        text = (
            "SELECT TIMESTAMP '2026-02-03 12:34:56.789' AS a, DATE '1969-12-31' AS b, "
            "TIMESTAMPTZ '2026-02-03 12:34:56+02' AS c, 1.10::numeric AS d, NULL AS e"
        )
        assert rows(server.run(text)) == [
            [
                datetime.datetime(2026, 2, 3, 12, 34, 56, 789_000),
                datetime.datetime(1969, 12, 31),
                datetime.datetime(2026, 2, 3, 10, 34, 56),
                "1.10",
                None,
            ]
        ]
        assert server.fail("SELECT * FROM nothing")[0] == "FAILED_PRECONDITION"
    assert databases.PASSWORD not in (tmp_path / "service.log").read_text()
