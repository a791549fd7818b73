"""The notebooks of docs/notebooks, each run from its first cell to its last."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY
from tests.later import LATER
from tests.waiting import wait_until

if LATER:
    pytest.importorskip("tensorflow")
    pytest.importorskip("nbclient", reason="needs the extra [dev]")
    pytest.importorskip("pandas", reason="needs the extra [notebook]")

SPEC = importlib.util.spec_from_file_location("notebooks", REPOSITORY / ".ci" / "notebooks.py")
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)


@pytest.fixture
def run(tmp_path):
    """Run a notebook; returns its cells, when its kernel has ended and left nothing behind."""

    def run_notebook(name):
        notebook = notebooks.execute(notebooks.NOTEBOOKS / f"{name}.ipynb", tmp_path)
        wait_until(lambda: not processes_in(tmp_path), "the end of all processes", seconds=20)
        assert [path.name for path in tmp_path.iterdir()] == [".ipython"]
        return notebook.cells

    return run_notebook


def processes_in(folder):
    """Processes whose command or working directory is in a folder."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text(errors="replace")
            if str(folder) in command or os.readlink(process / "cwd").startswith(str(folder)):
                commands.append(command)
        except OSError:
            continue
    return commands


def shown(cell, kind="text/plain"):
    """What a cell printed, or the value of its last expression in some form."""
    outputs = [output.get("data", {}).get(kind, output.get("text", "")) for output in cell.outputs]
    return "".join(outputs)


def pictures(cells):
    return [
        output
        for cell in cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]


def code_cell(cells, word):
    return next(cell for cell in cells if cell.cell_type == "code" and word in cell.source)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_killed_worker_comes_back_and_the_curve_is_drawn(run):
    cells = run("kill-a-worker")

    resets = shown(code_cell(cells, "old_size")).splitlines()
    assert [line.split(" ranks")[0] for line in resets] == ["0 -> 2", "2 -> 1", "1 -> 2"]
    assert len(pictures(cells)) == 1


@pytest.mark.further
@pytest.mark.timeout(600)
def test_statements_of_cells_train_and_predict(run):
    cells = run("sql")

    assert "diagnosis@1 " in shown(code_cell(cells, "TRAIN"), "text/html")
    assert "accuracy" in shown(code_cell(cells, "EVALUATE"), "text/html")
    predicted = shown(code_cell(cells, "PREDICT"), "text/html")
    assert all(f"<td>{name}</td>" in predicted for name in ("malignant", "benign"))


@pytest.mark.further
@pytest.mark.timeout(600)
def test_the_events_of_a_job_become_a_table(run):
    cells = run("events")

    kinds = shown(code_cell(cells, "value_counts"))
    assert all(kind in kinds for kind in ("step", "worker", "evaluation", "generation"))
    warm = shown(code_cell(cells, "pivot"))
    assert "localhost:0" in warm
    assert "localhost:1" in warm
    assert len(pictures(cells)) == 1
