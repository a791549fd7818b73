"""The verbs called from Python: in a real notebook, and in a script that has its own affairs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY, ZOO
from tests.later import LATER
from tests.records import write_records

if LATER:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra [dev]")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra [dev]")

BEFORE = """
import logging, os, signal, sys, threading
import edl_horovod

def state():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    logs = [logging.getLogger(name) for name in (None, "edl_horovod")]
    return handlers, [(log.level, list(log.handlers), log.propagate) for log in logs], os.getcwd()

def children():
    path = f"/proc/{os.getpid()}/task"
    return [pid for task in os.listdir(path)
            for pid in open(f"{path}/{task}/children").read().split()]

before = state(), children()
"""
CHECK = """
assert (state(), children()) == before, (state(), children(), before)
assert not {"tensorflow", "keras", "horovod", "torch"} & set(sys.modules)
print("nothing is left")
"""
TRAIN = """
import asyncio
assert asyncio.get_running_loop()
model = edl_horovod.train(
    model_zoo="zoo", model_def="tiny", params="keep_every=1", data="data/*.recordio",
    output="model", train={"batch_size": 20, "max_steps": 5}, progress=True)
print(model.steps, model.output)
"""
PREDICT = """
result = edl_horovod.predict(
    data="data/*.recordio", trained_model="model", output="predictions.recordio")
print(os.path.getsize(result.output) > 0)
metrics = edl_horovod.evaluate(trained_model="model", data=["data/part-0.recordio"]).metrics
print(sorted(metrics))
"""
INTERRUPTED = """
interrupted = []

def interrupt(events):
    if not interrupted and any(recorded.event.kind == "step" for recorded in events):
        interrupted.append(True)
        os.kill(os.getpid(), signal.SIGINT)  # What the notebook's stop button does.

try:
    edl_horovod.train(
        model_zoo="zoo", model_def="tiny", data="data/*.recordio", output="never",
        train={"batch_size": 20, "epochs": 10_000_000}, on_events=interrupt)
except edl_horovod.EdlError as error:
    print(type(error).__name__, error)
assert not os.path.exists("never")
"""
IN_A_SCRIPT = """
import asyncio

received = []

def on_term(number, frame):
    received.append(number)

def terminate(events):
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, on_term)
before = state(), children()

async def main():
    other = asyncio.create_task(asyncio.sleep(0.2, "the loop ran on"))
    settings = dict(model_zoo="zoo", data="data/*.recordio", train={"max_steps": 3})
    results = await asyncio.gather(*(
        asyncio.to_thread(edl_horovod.train, model_def="tiny", output=output, **settings)
        for output in ("a", "b")))
    print(await other, [result.steps for result in results])
    try:
        edl_horovod.train(model_def="raises", output="c", on_events=terminate, **settings)
    except edl_horovod.EdlError as error:
        print(f"error: {error}")
    assert set(received) == {signal.SIGTERM}

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path):
    """Where the caller works: relative paths must mean this folder."""
    write_records(tmp_path / "data", 100)
    (tmp_path / "zoo").symlink_to(ZOO)
    return tmp_path


def printed(notebook):
    return [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
    ]


def with_model_of(framework, code):
    """The same code with the model that another framework has for that of Keras."""
    if framework == "keras":
        return code
    named = f'model_def="{framework}_tiny"'
    return code.replace('model_def="tiny"', named)


@pytest.mark.further
def test_jobs_run_in_a_notebook_and_end_with_its_interrupt(folder, framework, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    cells = [BEFORE, TRAIN, PREDICT, INTERRUPTED, CHECK]
    cells = [with_model_of(framework, cell) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(folder)}}
    )

    client.execute()

    _, train, predict, interrupted, check = printed(notebook)
    assert train == f"5 {folder}/model\n"
    shown = "".join(output.get("text", "") for output in notebook.cells[1].outputs)
    assert "step 5 of 5" in shown
    assert predict == "True\n['absolute_error', 'loss']\n"
    assert interrupted.startswith("Interrupted The job was interrupted; all its processes have")
    assert check == "nothing is left\n"


@pytest.mark.further
def test_jobs_run_in_a_script_without_a_main_guard(folder, framework):
    script = folder / "mine.py"
    script.write_text(with_model_of(framework, BEFORE + IN_A_SCRIPT + CHECK))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    mine = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    edl = subprocess.run(
        [
            sys.executable,
            "-m",
            "edl_horovod",
            "train",
            "-q",
            "model_def=raises",
            "model_zoo=zoo",
            "data=data/*.recordio",
            "train.max_steps=3",
            "output=c",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert mine.returncode == 0, mine.stderr
    lines = mine.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("the loop ran on [1, 1]", "nothing is left")
    assert lines[1:-1] == edl.stderr.splitlines()
    assert edl.returncode == 3
    assert not Path(folder, "c").exists()
