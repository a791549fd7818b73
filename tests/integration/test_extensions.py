"""An installed package that adds to each of the tables."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINE = """
import numpy as np

from edl_horovod import ElasticDLSpec, Mode


class Line(ElasticDLSpec):
    def create_model(self):
        return np.zeros((1, 1))

    def create_dataset(self, records, mode):
        pairs = np.frombuffer(b"".join(records), "<f4").reshape(-1, 2).astype(float)
        return pairs[:, :1], None if mode is Mode.PREDICTION else pairs[:, 1:]

    def create_loss(self, outputs, labels):
        return np.mean((outputs - labels) ** 2)

    def create_optimizer(self, lr=0.01):
        return lr
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which a wheel of the package is installed."""
    folder = tmp_path_factory.mktemp("extension")
    project = folder / "project"
    shutil.copytree(TESTS / "extension", project)
    for module in ("numpy_framework.py", "adding_task.py"):
        shutil.copy(TESTS / module, project / "plain_extension")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, project]
    subprocess.run(wheel, check=True, timeout=120)
    (file,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "-t", folder / "site", file], check=True)
    return folder / "site"


@pytest.fixture
def edl(installed, tmp_path):
    """Run a command where the package is installed; gives what it printed."""
    variables = os.environ | {
        "PYTHONPATH": f"{installed}",
        "DIARY": f"{tmp_path}/diary",
        "PAPER": f"{tmp_path}/paper",
    }
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(LINE)

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "edl_horovod", *words],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_installed_package_adds_to_all_tables(edl, tmp_path):
    assert edl("greet", "all", "of", "you") == "Hello all of you\n"
    listed = edl("--help")
    assert re.search(r"^  tally +Count the records\.$", listed, re.MULTILINE)
    assert re.search(r"^  greet +Greet somebody\.", listed, re.MULTILINE)

    training = ["framework=plain", "model_zoo=zoo", "model_def=line", "output=model"]
    training += ["data=counting:100", "train.batch_size=20", "train.epochs=20"]
    settings = ["displays=[diary]", "train.compression=bf16", "train.saved_model=true"]
    edl("train", *training, "launch.np=2", *settings)
    assert (tmp_path / "model" / "saved_model.npz").is_file()
    assert {"step", "generation"} <= set((tmp_path / "diary").read_text().split())
    assert "loss" in edl("evaluate", "trained_model=model", "data=counting:30", "output=scores")

    tallied = edl("tally", "framework=plain", "data=counting:100", "launch.np=2")
    assert ["total:", "100"] in map(str.split, tallied.splitlines())
    (tmp_path / "some.pairs").write_text("1 2\n" * 123)
    tallied = edl("tally", "framework=plain", "data=some.pairs")
    assert ["total:", "123"] in map(str.split, tallied.splitlines())

    paper = ["launch.kind=paper", "launch.options.color=red", "launch.np=3"]
    edl("train", *training, *paper, "output=other")
    assert (tmp_path / "paper").read_text() == "train on 3 sheets of red paper\n"
    assert "model.job" in edl("list", ".")
    assert edl("doctor", "paper") == "OK    paper       there is paper\n"
