"""Which wheel of Horovod fits an environment, and what it is built with."""

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from edl_horovod.errors import MissingDependency, OutputError
from edl_horovod.horovod_build import recipe
from edl_horovod.horovod_build.progress import Display
from edl_horovod.horovod_build.wheel import find_wheel, provide_wheel
from tests.programs import run_python

REPOSITORY = Path(__file__).parents[2]
SETUP = "from setuptools import setup\nsetup(name='horovod', version='0.28.1')\n"
DESCRIBE = """
import json
from edl_horovod.horovod_build.recipe import compiler_environment, find_target
target = find_target()
print(json.dumps([target.name, str(target), compiler_environment(target)]))
"""
TARGET = recipe.Target({"torch": "torch 2.13.0"}, {"torch": "torch 2.13.0", "mpi": "none"})


@pytest.mark.long
def test_another_archive_of_the_same_name_is_refused(tmp_path):
    source = tmp_path / "horovod-0.28.1"
    source.mkdir()
    (source / "setup.py").write_text(SETUP)
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    with tarfile.open(folder / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    requirements = tmp_path / "horovod.txt"
    requirements.write_text(recipe.REQUIREMENT)
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--find-links", folder]
    run = run_python("-m", "pip", "download", *words, "-r", requirements, cwd=tmp_path)
    assert run.returncode != 0
    assert "Expected sha256" in run.stderr


def describe(folder, packages, **variables):
    """An environment where only these packages are installed: its target, and its build's."""
    for name, version in packages.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "tensorflow.py").write_text(
        "class sysconfig:\n    get_include = staticmethod(lambda: '/include')\n"
    )
    path = f"{REPOSITORY}{os.pathsep}{folder}"
    # Without the packages of this environment.
    run = run_python("-S", "-c", DESCRIBE, env={**os.environ, "PYTHONPATH": path, **variables})
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("packages", "named", "asked"),
    [
        ({"tensorflow-cpu": "2.21.0"}, "tensorflow-cpu 2.21.0", "10"),
        ({"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu", "01"),
        ({"tensorflow": "2.21.0", "torch": "2.13.0"}, "tensorflow 2.21.0 and torch 2.13.0", "11"),
    ],
)
def test_the_wheel_has_the_halves_of_what_is_installed(tmp_path, packages, named, asked):
    _, text, variables = describe(tmp_path, packages)
    assert f"for {named}, with" in text
    halves = ("TENSORFLOW", "PYTORCH")
    assert "".join(str(int(f"HOROVOD_WITH_{half}" in variables)) for half in halves) == asked
    left_out = [half for half in halves if f"HOROVOD_WITHOUT_{half}" in variables]
    assert left_out == [half for half, digit in zip(halves, asked, strict=True) if digit == "0"]


def test_another_version_or_setting_needs_another_wheel(tmp_path):
    names = set()
    for version, variables in (
        ("2.13.0", {}),
        ("2.13.1", {}),
        ("2.13.1", {"HOROVOD_GPU_OPERATIONS": "NCCL"}),
        ("2.13.1", {"HOROVOD_CYCLE_TIME": "2"}),  # A setting of a job, not of a build.
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        names.add(describe(folder, {"torch": version}, **variables)[0])
    assert len(names) == 3


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((n, True) for n in ("HOROVOD_BUILD_CUDA_CC_LIST", "CXXFLAGS", "LDFLAGS", "CCL_ROOT")),
        *((n, False) for n in ("HOROVOD_WITHOUT_GLOO", "HOROVOD_LOCAL_VERSION")),
    ],
)
def test_the_build_sees_a_variable_that_changes_it_where_the_name_of_the_wheel_does(
    tmp_path, name, counts
):
    plain, _, _ = describe(tmp_path, {"torch": "2.13.0"})
    changed, _, variables = describe(tmp_path, {}, **{name: "1"})
    assert (changed != plain) == counts
    assert (name in variables) == counts


def test_compilers_that_run_at_once_fit_into_the_memory(monkeypatch):
    monkeypatch.setattr(recipe, "total_bytes", lambda: 3 << 30)
    assert recipe.compiler_environment(TARGET)["MAKEFLAGS"] == "-j1"


def test_without_a_framework_it_says_what_to_install(tmp_path):
    run = run_python("-S", "-m", "edl_horovod.horovod_build", cwd=REPOSITORY)
    assert run.returncode == MissingDependency.exit_code
    assert all(extra in run.stderr for extra in ("'.[tensorflow]'", "'.[torch]'"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of wheels of a new user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "edl_horovod" / "horovod"
    folder.mkdir(parents=True)
    return folder


def put_wheel(folder):
    wheel = folder / f"{TARGET.name}-py3-none-any.whl"
    wheel.write_bytes(b"content")
    return wheel


def test_a_wheel_in_a_read_only_folder_is_used(tmp_path, cache, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel = put_wheel(folder)
    folder.chmod(0o555)
    monkeypatch.setenv("PATH", "")
    try:
        assert find_wheel(TARGET, folder) == wheel
        assert provide_wheel(TARGET, folder, Display(io.StringIO())) == wheel
        assert list(folder.iterdir()) == [wheel]
    finally:
        folder.chmod(0o755)


def test_a_wheel_of_the_cache_is_shared_with_everybody_who_reads_the_folder(tmp_path, cache):
    put_wheel(cache)
    folder = tmp_path / "shared" / "wheels"
    before = os.umask(0o077)
    try:
        wheel = provide_wheel(TARGET, folder, Display(io.StringIO()))
    finally:
        os.umask(before)
    assert wheel.parent == folder
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o755}
    assert wheel.read_bytes() == b"content"
    described = wheel.with_name(f"{TARGET.name}.txt")
    assert "torch 2.13.0" in described.read_text()
    assert sorted(wheel.parent.iterdir()) == sorted((wheel, described))
    assert {stat.S_IMODE(path.stat().st_mode) for path in wheel.parent.iterdir()} == {0o644}


def test_each_missing_program_is_a_sentence_with_its_packages(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingDependency) as error:
        provide_wheel(TARGET, None, Display(io.StringIO()))
    for debian, fedora in (("g++", "gcc-c++"), ("cmake", "cmake"), ("make", "make")):
        assert f"apt-get install {debian}" in error.value.problem
        assert f"install {fedora} (Fedora)." in error.value.problem
    assert not list(cache.iterdir())


def test_a_folder_that_cannot_be_written_is_told_before_the_build(tmp_path, cache):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError) as error:
        provide_wheel(TARGET, tmp_path / "file" / "wheels", Display(io.StringIO()))
    assert str(tmp_path / "file") in str(error.value)
