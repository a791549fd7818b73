"""Horovod is built from the one archive that the recipe names."""

import importlib
import importlib.metadata
import tarfile

import pytest

SETUP = "from setuptools import setup\nsetup(name='horovod', version='0.28.1')\n"


@pytest.fixture
def recipe():
    return importlib.import_module("edl_horovod.horovod_build.__main__")


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


@pytest.fixture
def install(recipe, monkeypatch):
    """Let these packages be installed, and no other ones."""

    def install_them(packages):
        def version(name):
            if name in packages:
                return packages[name]
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(recipe.importlib.metadata, "version", version)
        recipe.moved_headers = dict

    return install_them


@pytest.mark.parametrize(
    ("packages", "named", "asked"),
    [
        ({"tensorflow-cpu": "2.21.0"}, "tensorflow-cpu 2.21.0 none", "10"),
        ({"torch": "2.13.0+cpu"}, "none torch 2.13.0+cpu", "01"),
        ({"tensorflow": "2.21.0", "torch": "2.13.0"}, "tensorflow 2.21.0 torch 2.13.0", "11"),
    ],
)
def test_the_wheel_has_the_halves_of_what_is_installed(recipe, install, packages, named, asked):
    install(packages)
    facts, variables = recipe.facts(), recipe.build_environment()
    assert f"{facts['tensorflow']} {facts['torch']}" == named
    halves = ("TENSORFLOW", "PYTORCH")
    assert "".join(str(int(f"HOROVOD_WITH_{half}" in variables)) for half in halves) == asked
    left_out = [half for half in halves if f"HOROVOD_WITHOUT_{half}" in variables]
    assert left_out == [half for half, one in zip(halves, asked, strict=True) if one == "0"]


def test_without_a_framework_it_says_what_to_install(recipe, install):
    install({})
    with pytest.raises(recipe.BuildError, match=r"Neither TensorFlow nor PyTorch.*'\.\[torch\]'"):
        recipe.facts()
