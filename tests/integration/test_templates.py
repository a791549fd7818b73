"""The projects of `edl init`: the commands of each page as a newcomer types them, in order."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edl_horovod.job import events
from tests.frameworks import NEEDS_KERAS, NEEDS_TORCH
from tests.integration.conftest import REPOSITORY


def commands_of(readme):
    """The indented blocks of a page, one after the other."""
    blocks = re.findall(r"(?:^    .*\n)+", readme.read_text(), re.MULTILINE)
    return "".join(map(textwrap.dedent, blocks))


@pytest.fixture
def walk(tmp_path):
    """Write a project and run the commands of its page; returns it and what they printed."""

    def walk_project(template):
        variables = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(tmp_path),
            "KUBECONFIG": str(tmp_path / "none"),
        }

        def run(script, folder):
            done = subprocess.run(
                ["bash", "-e", "-c", script],
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=280,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done

        written = run(f"edl init project --template {template}", tmp_path)
        assert "note:" not in written.stderr
        return tmp_path / "project", run(
            commands_of(tmp_path / "project" / "README.md"), tmp_path / "project"
        ).stdout

    return walk_project


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("template", "least_accuracy"),
    [
        pytest.param("keras", 0.9, marks=NEEDS_KERAS),
        pytest.param("torch", 0.9, marks=NEEDS_TORCH),
        pytest.param("table", 0.8, marks=NEEDS_KERAS),
    ],
)
def test_a_project_trains_evaluates_predicts_and_tests_itself(walk, template, least_accuracy):
    project, printed = walk(template)

    rings = [e.event for e in events.read(project / "models" / "first.job" / "events.jsonl")]
    assert {ring.size for ring in rings if ring.kind == "generation"} == {2}
    metrics = json.loads((project / "models" / "first" / "metrics.json").read_text())
    assert metrics["accuracy"] >= least_accuracy
    assert list((project / "predictions").glob("*.recordio"))
    assert "1 passed" in printed
    assert "would be created (client dry run)" in printed


@NEEDS_KERAS
@pytest.mark.timeout(300)
def test_a_project_of_statements_trains_predicts_compares_and_tests_itself(walk):
    _, printed = walk("sql")

    r2 = re.search(r"^r2 +(\S+)", printed, re.MULTILINE)
    assert float(r2[1]) > 0.2
    assert "1 passed" in printed
    assert "kind: kubernetes" in printed
