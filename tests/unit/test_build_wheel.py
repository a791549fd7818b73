"""Horovod is built from the one archive that the recipe names."""

import importlib.util
import tarfile
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "docker" / "horovod" / "build_wheel.py"
SETUP = "from setuptools import setup\nsetup(name='horovod', version='0.28.1')\n"


@pytest.fixture
def recipe():
    spec = importlib.util.spec_from_file_location("build_wheel", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_another_archive_of_the_same_name_is_refused(recipe, tmp_path, monkeypatch):
    source = tmp_path / "horovod-0.28.1"
    source.mkdir()
    (source / "setup.py").write_text(SETUP)
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    index, folder = tmp_path / "index", tmp_path / "folder"
    index.mkdir()
    folder.mkdir()
    with tarfile.open(index / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(recipe.BuildError, match="Expected sha256"):
        recipe.unpack(folder)
    assert not list(folder.glob("*.tar.gz"))
