"""The cell magic in IPython, and what it shows."""

import contextlib
import sqlite3

import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.sql.statements import Result, StatementError
from tests.later import LATER

if LATER:
    testing = pytest.importorskip("IPython.testing.globalipapp")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    found = InteractiveShell.instance()
    found.history_manager.enabled = False
    yield found
    InteractiveShell.clear_instance()


@pytest.mark.timeout(60)
def test_a_cell_runs_statements_and_the_next_one_knows_the_database(shell, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "hr.db")) as connection, connection:
        connection.execute("CREATE TABLE employee AS SELECT 'a<b' AS name")
    shell.run_line_magic("load_ext", "edl_horovod.sql.magic")
    places = f"db=sqlite:///{tmp_path}/hr.db models={tmp_path}/models"
    found = shell.run_cell_magic("edl", places, "SHOW MODELS;\nSELECT name FROM employee")
    assert found.rows == (("a<b",),)
    assert "<td>a&lt;b</td>" in found._repr_html_()
    again = shell.run_cell_magic("edl", "", "SELECT count(*) AS n FROM employee")
    assert again.dicts() == [{"n": 1}]
    with pytest.raises(ConfigError, match="key=value"):
        shell.run_cell_magic("edl", "nonsense", "SELECT 1 AS n")


@pytest.mark.timeout(60)
def test_an_error_of_a_statement_is_shown_without_a_traceback(shell, tmp_path, capsys):
    (tmp_path / "hr.db").touch()
    shell.run_line_magic("load_ext", "edl_horovod.sql.magic")
    found = shell.run_cell(f"%%edl db=sqlite:///{tmp_path}/hr.db\nSELECT 1 TO TRAIN x")
    assert isinstance(found.error_in_exec, StatementError)
    shown = capsys.readouterr().out
    assert "error: INTO is missing" in shown
    assert "Traceback" not in shown
    assert "magic.py" not in shown


def test_a_sentence_is_shown_as_text():
    assert Result(message="m@1 is <live>.")._repr_html_() == "<p>m@1 is &lt;live&gt;.</p>"
