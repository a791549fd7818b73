"""Tasks of one process on records in memory, by the framework of the tests."""

from pathlib import Path

import pytest

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.records.sources.table import SCHEMES
from tests.alone import run_alone
from tests.jobs import config_of
from tests.numpy_framework import ENTRY

ZOO = Path(__file__).parents[2] / "zoo"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a task on 100 records: `run("train", "train.epochs=2", until=7)`; gives its result."""
    monkeypatch.setitem(FRAMEWORKS, "numpy", ENTRY)
    monkeypatch.setitem(SCHEMES, "numbers", "tests.memory_source")

    def run_task(task, *settings, until=0, data="numbers:100", output="out", job="job", **options):
        defaults = [f"data={data}", f"output={tmp_path / output}", f"job_dir={tmp_path / job}"]
        if task == "train":
            defaults += [f"model_zoo={ZOO}", "framework=numpy"]
        config = config_of(task, [*defaults, *settings])
        return run_alone(config, tmp_path / "events.jsonl", until, **options)

    return run_task
