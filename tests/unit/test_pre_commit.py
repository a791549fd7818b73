"""What a commit runs."""

import os
import shutil
import subprocess
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[2]


def test_a_commit_never_sets_the_environment_up(tmp_path):
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for hook in config["repos"][0]["hooks"]:
        # There is no environment yet: make would begin with it.
        run = subprocess.run(
            [*hook["entry"].split(), "-n"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PATH": os.environ["PATH"]},
        )
        assert "-m venv" not in run.stdout
        assert ".venv/bin/" in run.stdout
