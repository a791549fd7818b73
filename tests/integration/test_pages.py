"""The commands of a page, in its order and as a newcomer runs them, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edl_horovod.job.directory import JobDir
from tests.integration.conftest import REPOSITORY

pytest.importorskip("tensorflow")

FILE = re.compile(r"`(?P<path>[\w/]+\.py)`.*?```python\n(?P<text>.*?)```\n", re.DOTALL)
COMMANDS = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def parts_of(page):
    """Commands, and files with their paths, as they follow each other."""
    rest = page
    while (commands := COMMANDS.search(rest)) or FILE.search(rest):
        file = FILE.search(rest)
        if file is None or (commands is not None and commands.start() < file.start("text")):
            yield None, re.sub(r"^    ", "", commands[0], flags=re.MULTILINE)
            rest = rest[commands.end() :]
        else:
            yield file["path"], file["text"]
            rest = rest[file.end() :]


@pytest.mark.long
def test_the_first_model_trains_validates_on_other_records_and_predicts(tmp_path):
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }
    page = (REPOSITORY / "docs" / "how-to" / "first-model.md").read_text()
    for path, text in parts_of(page):
        if path is not None:
            (tmp_path / path).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    config = JobDir(tmp_path / "model.job").read_config()
    assert config.validation_data not in ("", config.data)
    assert list((tmp_path / "predictions").glob("*.recordio"))
