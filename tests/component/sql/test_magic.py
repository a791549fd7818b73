"""The cell magic in IPython, and what it shows."""

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
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.timeout(60)
def test_a_cell_runs_statements_and_the_next_one_knows_the_database(shell, sqlite, tmp_path):
    sqlite.run("CREATE TABLE employee AS SELECT 'a<b' AS name")
    shell.run_line_magic("load_ext", "edl_horovod.sql.magic")
    places = f"db={sqlite.url} models={tmp_path}/models"
    result = shell.run_cell_magic("edl", places, "SHOW MODELS;\nSELECT name FROM employee")
    assert result.rows == (("a<b",),)
    assert "a&lt;b<" in result._repr_html_()
    again = shell.run_cell_magic("edl", "", "SELECT count(*) AS n FROM employee")
    assert again.dicts() == [{"n": 1}]
    with pytest.raises(ConfigError, match="key=value"):
        shell.run_cell_magic("edl", "nonsense", "SELECT 1 AS n")


@pytest.mark.timeout(60)
def test_an_error_of_a_statement_is_shown_without_a_traceback(shell, sqlite, capsys):
    shell.run_line_magic("load_ext", "edl_horovod.sql.magic")
    result = shell.run_cell(f"%%edl db={sqlite.url}\nSELECT 1 TO TRAIN x")
    assert isinstance(result.error_in_exec, StatementError)
    shown = capsys.readouterr().out
    assert "error: INTO" in shown
    assert "Traceback" not in shown
    assert "magic.py" not in shown


def test_a_sentence_is_shown_as_text():
    assert Result(message="m@1 is <live>.")._repr_html_() == "<p>m@1 is &lt;live&gt;.</p>"
