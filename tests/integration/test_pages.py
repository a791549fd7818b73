"""The snippets of pages in their order, as a newcomer runs them, in a folder of their own."""

import ast
import contextlib
import os
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from edl_horovod.job.directory import JobDir
from tests.integration.conftest import REPOSITORY, run_script
from tests.later import LATER
from tests.snippets import WALKED, snippets_in

if LATER:
    pytest.importorskip("tensorflow")

IN_TORCH = {
    "docs/how-to/coming-from/horovod.md",
    "docs/how-to/coming-from/torchrun-and-lightning.md",
    "docs/reference/pytorch.md",
}
MADE_BY_THE_PAGE = {
    "docs/how-to/first-model.md": ("model", "records"),
    "docs/how-to/predict.md": (),
    "docs/how-to/prepare.md": ("model", "records"),
    "docs/reference/pytorch.md": ("model", "records/train"),
}
"""What the page does not find; on pages that are not named here this is the model."""
FILE = re.compile(r"`(?P<path>[\w/]+\.py)`")
NUM_PICTURES = {"train": 20, "test": 5, "new": 2}
"""Of each digit."""
PREPARE = "edl prepare model_def=mnist_functional_api data=images/{0} output=records/{0}"
TRAIN = "edl train model_def=mnist_functional_api data=records/train output=model"


def run(script, folder):
    """Run a script in a folder as if typed there."""
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    run_script(script, folder, variables, seconds=600)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the README and the pages before leave: few pictures, their records, and a model."""
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copytree(REPOSITORY / "model_zoo", folder / "model_zoo")
    run("python model_zoo/sample_images.py digits images; cp -r images/test images/new", folder)
    for part, number in NUM_PICTURES.items():
        for digit in (folder / "images" / part).iterdir():
            for picture in sorted(digit.iterdir())[number:]:
                picture.unlink()
    run("\n".join([*map(PREPARE.format, NUM_PICTURES), TRAIN]), folder)
    with contextlib.closing(sqlite3.connect(folder / "hr.db")) as database, database:
        database.execute("CREATE TABLE employee (name TEXT, role TEXT, salary REAL)")
        rows = [(f"n{at % 40}", "ab"[at % 2], 100.0 + 50 * (at % 2)) for at in range(200)]
        database.executemany("INSERT INTO employee VALUES (?, ?, ?)", rows)
        database.execute("CREATE TABLE testdata AS SELECT name, role FROM employee LIMIT 9")
    return folder


def is_python(text):
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@pytest.mark.further
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", sorted(WALKED))
def test_the_snippets_of_a_page_run(page, prepared, tmp_path):
    if page in IN_TORCH:
        pytest.importorskip("torch")
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder)
    for name in MADE_BY_THE_PAGE.get(page, ("model",)):
        shutil.rmtree(folder / name)
    shutil.rmtree(folder / "model.job")
    for snippet in snippets_in(REPOSITORY / page):
        named = FILE.findall(snippet.before.rpartition("\n\n")[2])
        if snippet.listed:
            continue
        if snippet.language == "python" and named:
            (folder / named[-1]).write_text(snippet.text)
        elif is_python(snippet.text):
            (folder / "snippet.py").write_text(f"import edl_horovod\n{snippet.text}")
            run("python snippet.py", folder)
        else:
            run(snippet.text, folder)
    if page == "docs/how-to/first-model.md":
        config = JobDir(folder / "model.job").read_config()
        assert config.validation_data not in ("", config.data)
        assert list((folder / "predictions").glob("*.recordio"))
