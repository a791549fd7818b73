"""`edl sql` as a command: where statements come from, and how results are printed."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from edl_horovod.cli.main import main
from tests.programs import run_python


@pytest.fixture
def places(sqlite, tmp_path, monkeypatch):
    monkeypatch.delenv("EDL_DB", raising=False)
    sqlite.run(
        "CREATE TABLE employee (name TEXT, salary REAL, photo BLOB)",
        "INSERT INTO employee VALUES ('ann [1]', 1.5, x'00ff'), (NULL, 2, NULL)",
    )
    return [f"db={sqlite.url}", f"models={tmp_path}/models"]


def test_a_table_is_printed_for_people(places, capsys):
    assert main(["sql", "SELECT * FROM employee", *places]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed if "ann" in line] == [["ann", "[1]", "1.5", "00ff"]]
    assert printed[-1] == "2 rows"


def shown_on_a_terminal(places, text, width=80):
    """What `edl sql` prints on a terminal that has so many columns."""
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, width))
    command = [sys.executable, "-m", "edl_horovod", "sql", text, *places]
    printed = b""
    with subprocess.Popen(command, stdin=terminal, stdout=terminal) as process:
        os.close(terminal)
        # The terminal's end is an error.
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as stream:
            while content := stream.read(4096):
                printed += content
    assert process.returncode == 0
    return re.sub(r"\x1b\[[\d;]*m", "", printed.decode()).replace("\r\n", "\n")


@pytest.mark.long
def test_a_wide_row_on_a_terminal_has_a_line_for_each_value(places):
    values = ", ".join(f"{number} AS column_{number}" for number in range(40))
    text = f"SELECT {values}, '{'word ' * 40}' AS words, salary FROM employee"
    lines = shown_on_a_terminal(places, text).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].strip("-") == "[ row 1 ]"
    assert [line.split() for line in lines].count(["column_39", "|", "39"]) == 2
    assert [line.split()[-1] for line in lines if line.startswith("salary")] == ["1.5", "2"]
    assert " ".join(lines).count("word ") == 80
    assert lines[-1] == "2 rows"


@pytest.mark.long
def test_a_narrow_table_on_a_terminal_is_a_table(places):
    text = f"SELECT name, '{'word ' * 40}' AS words, salary FROM employee"
    lines = shown_on_a_terminal(places, text).splitlines()
    assert max(map(len, lines)) <= 80
    assert ["name", "words", "salary"] in [line.split() for line in lines]


def test_lines_of_json_are_printed_for_programs(places, capsys):
    assert main(["sql", *places, "-o", "json", "SELECT name FROM employee; SHOW MODELS"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["rows"] == [["ann [1]"], [None]]
    assert second["columns"][0] == "name"


def test_statements_come_from_a_file(places, tmp_path, capsys):
    (tmp_path / "a.sql").write_text("SELECT 1 AS one;\nDELETE FROM employee;")
    assert main(["sql", "-f", str(tmp_path / "a.sql"), *places]) == 0
    assert "2 rows" in capsys.readouterr().out


@pytest.mark.long
def test_statements_come_from_stdin(places):
    path = {"PYTHONPATH": str(Path(__file__).parents[3])}
    words = ("-m", "edl_horovod", "sql", *places)
    run = run_python(*words, env=os.environ | path, input="SELECT 41 + 1 AS answer")
    assert run.returncode == 0, run.stderr
    assert "42" in run.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["SELECT 1", "SELECT 2"], "from one place"),
        (["SELECT 1", "-f", "x.sql"], "from one place"),
        ([";"], "no statement"),
        (["SELECT 1", "--cfg", "job"], "--dry-run"),
        (["SELECT 1", "output=x"], "INTO sets it"),
        (["-f", "no-such.sql"], "no-such.sql"),
        (["SELECT 1 TO TRAIN"], "line 1, column 18"),
    ],
)
def test_what_cannot_be_run_is_an_error_with_a_code(words, said, places, capsys):
    assert main(["sql", *words, *places]) == 2
    assert said in capsys.readouterr().err


def test_no_database_is_an_error(monkeypatch, capsys):
    monkeypatch.delenv("EDL_DB", raising=False)
    assert main(["sql", "SELECT 1"]) == 2
    assert "EDL_DB" in capsys.readouterr().err


def test_a_setting_of_a_job_that_is_misspelt_is_an_error(places, capsys):
    text = "SELECT name, salary FROM employee TRAIN regressor.DNN INTO m"
    assert main(["sql", "--dry-run", text, *places, "launch.npp=2"]) == 2
    assert "'launch.np'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("rate", ["0.1", "HPARAM_CANDIDATES([0.1, 1])"])
def test_a_dry_run_for_a_cluster_needs_none(places, capsys, monkeypatch, tmp_path, rate):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    text = "SELECT name, salary FROM employee TRAIN regressor.DNN"
    text += f" WITH learning_rate={rate}, train.split='random' INTO m"
    settings = ["launch=kubernetes", "image=registry.example.com/zoo:1"]
    settings += [f"kubernetes.volumes={{models: {{claim: models, mount: {tmp_path}}}}}"]

    assert main(["sql", "--dry-run", text, *places, *settings]) == 0
    assert "kind: kubernetes" in capsys.readouterr().out
    assert main(["sql", "--dry-run", text, *places, *settings[:-1]]) == 2
    assert "volume" in capsys.readouterr().err


def test_an_earlier_statement_stays_done_where_a_later_one_fails(places, capsys):
    assert main(["sql", "DELETE FROM employee; SELECT nothing FROM employee", *places]) == 4
    assert main(["sql", "SELECT count(*) AS n FROM employee", "-o", "json", *places]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == [[0]]


def test_a_picture_is_of_one_explain(places, tmp_path, capsys):
    for text in ("SELECT 1", "SELECT 1 EXPLAIN m; SELECT 1 EXPLAIN m"):
        assert main(["sql", text, "--picture", f"{tmp_path}/a.png", *places]) == 2
        assert "one EXPLAIN" in capsys.readouterr().err
