"""The wheel is all that the submit half needs: no checkout, no framework."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edl_horovod.models.lookup import list_definitions

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("setup.py", "pyproject.toml", "constraints.txt", "MANIFEST.in", "README.md", "LICENSE")
RUN = """
import sys

# Python takes them for missing, both in an import and when it looks for them.
sys.modules.update(dict.fromkeys(("tensorflow", "keras", "horovod", "torch", "kubernetes")))
from edl_horovod.cli.main import main
import edl_horovod
print(edl_horovod.__file__, file=sys.stderr)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's contents."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(REPOSITORY / name, source)
    for name in ("edl_horovod", "conf", "model_zoo", "starter"):
        shutil.copytree(REPOSITORY / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(source)], check=True)
    with zipfile.ZipFile(next(folder.glob("edl_horovod-*.whl"))) as wheel:
        wheel.extractall(folder / "unpacked")
    return folder / "unpacked"


def edl(unpacked, cwd, *words):
    return subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )


def test_it_composes_a_job_from_any_folder_without_a_framework(unpacked, tmp_path):
    run = edl(
        unpacked,
        tmp_path,
        "train",
        "--dry-run",
        "model_def=mnist",
        "data=/data/*.recordio",
        "output=model",
        "launch=mpi",
        "train.batch_size=48",
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.strip() == str(unpacked / "edl_horovod" / "__init__.py")
    assert "batch_size: 48" in run.stdout
    assert "kind: mpi" in run.stdout  # Of a group in its conf/.


def test_an_installed_wheel_names_a_misspelt_key(unpacked, tmp_path):
    run = edl(unpacked, tmp_path, "train", "--dry-run", "model_def=mnist", "data=x", "train.bach=2")
    assert run.returncode == 2, run.stderr
    assert "train.batch_size" in run.stderr


@pytest.mark.parametrize("template", ["keras", "torch", "table", "sql"])
def test_it_writes_the_projects_and_says_what_they_need(unpacked, tmp_path, template):
    run = edl(unpacked, tmp_path, "init", "project", "--template", template)
    assert run.returncode == 0, run.stderr
    assert "tensorflow" in run.stderr or template == "torch"
    assert "torch" in run.stderr or template != "torch"
    source, project = REPOSITORY / "starter" / template, tmp_path / "project"
    expected = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    written = {path.relative_to(project) for path in project.rglob("*") if path.is_file()}
    assert written == {path for path in expected if "__pycache__" not in path.parts}


def test_it_writes_a_project_whose_experiment_composes(unpacked, tmp_path):
    assert edl(unpacked, tmp_path, "init", "project").returncode == 0
    words = ("train", "--config-dir", "conf", "+experiment=wider", "--dry-run")
    run = edl(unpacked, tmp_path / "project", *words)
    assert run.returncode == 0, run.stderr
    assert "metric: loss" in run.stdout
    assert not list((unpacked / "edl_horovod" / "starter").rglob("*.pyc"))


def test_a_wheel_has_the_models_of_the_zoo(unpacked):
    zoo = unpacked / "edl_horovod" / "model_zoo"
    assert list_definitions(zoo) == list_definitions(REPOSITORY / "model_zoo")
    assert (zoo / "requirements.txt").is_file()
    assert not list(zoo.rglob("*.pyc"))


def test_it_has_the_command_the_page_and_all_of_conf(unpacked):
    (entry_points,) = unpacked.glob("edl_horovod-*.dist-info/entry_points.txt")
    assert "edl = edl_horovod.__main__:main" in entry_points.read_text()
    expected = {p.relative_to(REPOSITORY / "conf") for p in (REPOSITORY / "conf").rglob("*.yaml")}
    for name in ("page.html", "style.css"):
        assert (unpacked / "edl_horovod" / "displays" / "page" / name).is_file()
    conf = unpacked / "edl_horovod" / "conf"
    assert {path.relative_to(conf) for path in conf.rglob("*.yaml")} == expected
    assert not [path for path in unpacked.iterdir() if path.name in ("tests", "conf", "docker")]
