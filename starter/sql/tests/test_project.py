"""Run `python -m pytest tests` after a change: it takes seconds, and needs `make_data.py` run."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SQL = ["sql", "-q", "--config-dir", "conf", "+experiment=first", "db=sqlite:///data/patients.db"]


def test_the_statement_builds_its_model_and_trains_one_batch(tmp_path):
    settings = ["-f", "statements/train.sql", "launch.np=1", "train.max_steps=1"]
    run = subprocess.run(
        [sys.executable, "-m", "edl_horovod", *SQL, *settings, f"models={tmp_path}/models"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "models" / "progression" / "1" / "model" / "trained_model.pb").is_file()
