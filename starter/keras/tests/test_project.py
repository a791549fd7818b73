"""Run `python -m pytest tests` after a change: it takes seconds, and needs `make_data.py` run."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
TRAIN = ["train", "-q", "--config-dir", "conf", "+experiment=first"]


def test_the_first_experiment_builds_its_model_and_trains_one_batch(tmp_path):
    settings = ["launch.np=1", "train.max_steps=1", f"output={tmp_path}/model"]
    run = subprocess.run(
        [sys.executable, "-m", "edl_horovod", *TRAIN, *settings],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "model" / "trained_model.pb").is_file()
