"""The projects of `edl init`: the commands of each page as a newcomer types them, in order."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edl_horovod.job import events
from tests.frameworks import FIRST_SOON, NEEDS_KERAS
from tests.integration.conftest import REPOSITORY

SECONDS = 600


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
            with subprocess.Popen(
                ["bash", "-e", "-c", script],
                cwd=folder,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            ) as shell:
                try:
                    printed, errors = shell.communicate(timeout=SECONDS)
                except BaseException:
                    # Ranks end with the command that started them.
                    os.killpg(shell.pid, signal.SIGKILL)
                    raise
            assert shell.returncode == 0, printed + errors
            return printed, errors

        _, notes = run(f"edl init project --template {template}", tmp_path)
        assert "note:" not in notes
        project = tmp_path / "project"
        return project, run(commands_of(project / "README.md"), project)[0]

    return walk_project


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "template", [*FIRST_SOON, pytest.param("table", marks=[NEEDS_KERAS, pytest.mark.long])]
)
def test_a_project_trains_evaluates_predicts_and_tests_itself(walk, template):
    project, printed = walk(template)

    rings = [e.event for e in events.read(project / "models" / "first.job" / "events.jsonl")]
    assert {ring.size for ring in rings if ring.kind == "generation"} == {2}
    metrics = json.loads((project / "models" / "first" / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.8
    assert list((project / "predictions").glob("*.recordio"))
    assert "1 passed" in printed
    assert "would be created (client dry run)" in printed


@NEEDS_KERAS
@pytest.mark.timeout(SECONDS)
def test_a_project_of_statements_trains_predicts_compares_and_tests_itself(walk):
    _, printed = walk("sql")

    r2 = re.search(r"^ *r2 +(\S+)", printed, re.MULTILINE)
    assert float(r2[1]) > 0.2
    assert "1 passed" in printed
    assert "kind: kubernetes" in printed
