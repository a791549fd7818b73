"""The tutorial of users' own experiments, as it stands: every command in it is run."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "tutorials" / "your-own-experiments.md"
COMMANDS = ("edl ", "cd ", "cat ", "mkdir ")


def blocks():
    """The indented parts of the page."""
    blocks = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


@pytest.mark.further
def test_every_command_of_the_tutorial_runs(tmp_path):
    commands = [block for block in blocks() if block.startswith(COMMANDS)]
    promised = [
        line for block in blocks() if not block.startswith(COMMANDS) for line in block.splitlines()
    ]
    script = "set -e\n" + "\n".join(commands)
    bin_dir = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(promised) == 4
    for line in promised:
        assert line in done.stdout, line
    models = tmp_path / "project" / "models"
    names = {path.parent.name for path in models.glob("*/trained_model.pb")}
    assert {"first", "short"} < names
    assert len(names) == 3  # And one of the name of today.
