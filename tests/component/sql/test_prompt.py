"""The prompt: lines that belong together, completion, errors that do not end it, the history."""

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.prompt import Words, names_to_complete, run_prompt
from tests.component.sql.sessions import session_on

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def session(sqlite, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sqlite.run(
        "CREATE TABLE employee (name TEXT, salary REAL)", "INSERT INTO employee VALUES ('ann', 1.5)"
    )
    with session_on(sqlite, tmp_path, lambda config: None) as session:
        yield session


def typed(session, keys):
    """What the prompt showed and complained of while somebody typed."""
    shown, complaints = [], []
    with create_pipe_input() as source:
        source.send_text(keys)
        run_prompt(session, shown.append, complaints.append, source=source, sink=DummyOutput())
    return shown, complaints


def test_a_statement_ends_with_a_semicolon_and_may_have_lines(session, tmp_path):
    shown, complaints = typed(session, "SELECT name\rFROM employee;\rexit\r")
    assert [result.rows for result in shown] == [(("ann",),)]
    assert complaints == []
    history = tmp_path / "state" / "edl_horovod" / "sql_history"
    assert "FROM employee;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        ("SELECT name -- all;\rFROM employee; -- done\r", ("ann",)),
        ("SELECT ';\r' AS x;\r", (";\n",)),
        ("SELECT ( /* ; */ 1 -- ;\r) AS x;\r", (1,)),
        ("CREATE TRIGGER g AFTER INSERT ON employee BEGIN SELECT 1;\rEND; SELECT 2 AS x;\r", (2,)),
    ],
)
def test_a_semicolon_that_ends_no_statement_ends_no_input(session, keys, row):
    shown, complaints = typed(session, f"{keys}exit\r")
    assert complaints == []
    assert shown[-1].rows == (row,)


@pytest.mark.parametrize(
    ("text", "named"),
    [("SELECT 1);", ""), ("SELECT a TO TRAIN x;", "INTO")],
    ids=["a bracket too many", "a clause that is missing"],
)
def test_an_error_is_told_at_once_and_the_prompt_goes_on(session, text, named):
    shown, (complaint,) = typed(session, f"{text}\rSELECT 1 AS n;\r\x04")
    assert named in str(complaint)
    assert [result.columns for result in shown] == [("n",)]


def test_commands_of_other_prompts_are_understood(session):
    shown, complaints = typed(
        session, "help\r\\d\r.tables\r\\d employee\r.schema nothing\r.nonsense\r\\q\r"
    )
    assert "SHOW MODELS" in shown[0].message
    assert [result.rows for result in shown[1:3]] == [(("employee",),)] * 2
    assert shown[3].rows == (("name",), ("salary",))
    assert [type(error) for error in complaints] == [DataError, ConfigError]


def test_ctrl_c_clears_the_line(session):
    shown, complaints = typed(session, "SELECT nonsense\x03SELECT 1 AS n;\rquit\r")
    assert [result.columns for result in shown] == [("n",)]
    assert complaints == []


@pytest.mark.parametrize(
    ("before", "completed"),
    [("SELECT * FROM emp", ["employee"]), ("sel", ["SELECT"]), ("SELECT sal", ["salary"])],
)
def test_names_and_keywords_are_completed(before, completed):
    words = Words(lambda: ["employee", "name", "salary"])
    completions = words.get_completions(Document(before), CompleteEvent())
    assert [completion.text for completion in completions] == completed


def test_tables_and_their_columns_are_names_to_complete(session):
    assert set(names_to_complete(session)) == {"employee", "name", "salary"}
