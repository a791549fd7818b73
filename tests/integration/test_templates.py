"""The projects of `edl init`: the commands of each page as a newcomer types them, in order."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from edl_horovod.job import events
from tests.frameworks import FIRST_IN_CI, NEEDS_KERAS
from tests.integration.conftest import REPOSITORY, run_script
from tests.snippets import snippets_in

SECONDS = 600


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
            return run_script(script, folder, variables, seconds=SECONDS)

        _, notes = run(f"edl init project --template {template}", tmp_path)
        assert "note:" not in notes
        project = tmp_path / "project"
        page = REPOSITORY / "starter" / template / "README.md"
        commands = "".join(snippet.text for snippet in snippets_in(page))
        return project, run(commands, project)[0]

    return walk_project


@pytest.mark.long
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "template", [*FIRST_IN_CI, pytest.param("table", marks=[NEEDS_KERAS, pytest.mark.further])]
)
def test_a_project_trains_evaluates_predicts_and_tests_itself(walk, template):
    project, printed = walk(template)

    rings = [e.event for e in events.read(project / "models" / "first.job" / "events.jsonl")]
    assert {ring.size for ring in rings if ring.kind == "generation"} == {2}
    metrics = json.loads((project / "models" / "first" / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.8
    assert list((project / "predictions").glob("*.recordio"))
    assert "1 passed" in printed
    assert "created (client " in printed


@pytest.mark.further
@NEEDS_KERAS
@pytest.mark.timeout(SECONDS)
def test_a_project_of_statements_trains_predicts_compares_and_tests_itself(walk):
    _, printed = walk("sql")

    r2 = re.search(r"^ *r2 +(\S+)", printed, re.MULTILINE)
    assert float(r2[1]) > 0.2
    assert "1 passed" in printed
    assert "kind: kubernetes" in printed
