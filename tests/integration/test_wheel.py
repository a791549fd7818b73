"""The wheel is all that a user needs: no checkout, and to submit jobs no framework."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.models.lookup import list_definitions
from tests.frameworks import FIRST
from tests.records import write_records

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


RELEASE = """
import runpy, sys
from pathlib import Path
release = runpy.run_path(sys.argv[1])
for path in release["build"](Path(sys.argv[2]), seconds=1_000_000_000):
    print(release["sha256"](path))
"""
BUILD = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the source archive of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(REPOSITORY / name, source)
    for name in ("edl_horovod", "conf", "model_zoo", "starter"):
        shutil.copytree(REPOSITORY / name, source / name)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=source,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (archive,) = folder.glob("edl_horovod-*.tar.gz")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(archive)], check=True)
    return next(folder.glob("edl_horovod-*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel):
    """The wheel's contents."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "unpacked")
    return wheel.parent / "unpacked"


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


@pytest.mark.long
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


@pytest.mark.long
def test_an_installed_wheel_names_a_misspelt_key(unpacked, tmp_path):
    run = edl(unpacked, tmp_path, "train", "--dry-run", "model_def=mnist", "data=x", "train.bach=2")
    assert run.returncode == 2, run.stderr
    assert "train.batch_size" in run.stderr


@pytest.mark.long(after=1)
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


@pytest.mark.long
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
    page = REPOSITORY / "edl_horovod" / "displays" / "page"
    files = [path for path in page.rglob("*.*") if path.suffix in (".css", ".html", ".js")]
    assert len(files) == 6
    for path in files:
        assert (unpacked / path.relative_to(REPOSITORY)).read_bytes() == path.read_bytes()
    conf = unpacked / "edl_horovod" / "conf"
    assert {path.relative_to(conf) for path in conf.rglob("*.yaml")} == expected
    assert not [path for path in unpacked.iterdir() if path.name in ("tests", "conf", "docker")]


def test_it_has_the_recipe_of_horovod_and_the_licences_of_what_that_patches(unpacked):
    recipe = REPOSITORY / "edl_horovod" / "horovod_build"
    files = [path for path in recipe.rglob("*") if path.suffix in (".h", ".patch", ".txt")]
    assert len(files) == 5
    for path in files:
        assert (unpacked / path.relative_to(REPOSITORY)).read_bytes() == path.read_bytes()
    (licenses,) = unpacked.glob("edl_horovod-*.dist-info/licenses")
    names = {path.name for path in licenses.rglob("*") if path.is_file()}
    assert names == {"LICENSE", "LICENSE-gloo", "LICENSE-horovod", "NOTICE-horovod"}
    library = Path("edl_horovod", "displays", "page", "uplot", "LICENSE")
    assert (licenses / library).read_bytes() == (REPOSITORY / library).read_bytes()


@pytest.fixture
def environment(tmp_path):
    """A new environment with all packages of this one, but edl_horovod and Horovod."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    linked = tmp_path / "packages"
    linked.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "edl_horovod" not in path.name and not path.name.startswith(("horovod", "pip")):
            (linked / path.name).symlink_to(path)
    (packages / "linked.pth").write_text(f"{linked}\n")
    return tmp_path / "venv" / "bin"


@pytest.fixture(params=["found", pytest.param("built", marks=pytest.mark.further)])
def wheel_dir(request, tmp_path):
    """Where `edl setup-horovod` finds the wheel that this environment has, or none for it.

    It takes that only for the same recipe, packages and compilers, as it was built by `make setup`.
    """
    if request.param == "built":
        return tmp_path / "wheels"
    origin = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    return Path(url2pathname(urlsplit(json.loads(origin)["url"]).path)).parent


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_in_an_environment_of_its_own_it_sets_up_horovod_and_trains_on_a_ring(
    environment, wheel, wheel_dir, tmp_path
):
    def run(program, *words):
        done = subprocess.run(
            [environment / program, *words],
            cwd=tmp_path,
            env={
                **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                # Open MPI's compiler is in this environment, and Horovod was built with it.
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
            },
            capture_output=True,
            text=True,
            timeout=1700,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    # Without an index pip accepts what is there already, or fails: the ranges are held.
    pip = ("-m", "pip", "install", "-q", "--no-index")
    run("python", *pip, f"{wheel}[{FRAMEWORKS[FIRST].extra}]")
    was_built = not any(wheel_dir.glob("horovod-*.whl"))
    printed = run("edl", "setup-horovod", "--wheel-dir", str(wheel_dir))
    assert "is installed." in printed
    assert ("Compiling" in printed) == was_built
    assert "is installed" in run("edl", "setup-horovod", "--dry-run")

    data = write_records(tmp_path / "data", 64)
    run(
        "edl",
        "train",
        f"model_zoo={REPOSITORY / 'tests' / 'zoo'}",
        f"model_def={'' if FIRST == 'keras' else f'{FIRST}_'}tiny",
        f"data={data}",
        "output=model",
        "train.batch_size=16",
        "launch.np=2",
        "launch.threads_per_rank=1",
    )
    assert (tmp_path / "model" / "trained_model.pb").is_file()


@pytest.fixture
def git_of_anybody(tmp_path, monkeypatch):
    """Let Git read a clone of somebody else: root runs these tests in a user's clone."""
    (tmp_path / "gitconfig").write_text("[safe]\n  directory = *\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))


@pytest.mark.long
@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="a release is made of a commit")
@pytest.mark.usefixtures("git_of_anybody")
def test_a_release_is_the_same_whatever_the_folder_and_the_umask(tmp_path):
    printed = []
    for name, umask in (("first", 0o022), ("second", 0o077)):
        command = [sys.executable, "-c", RELEASE, str(REPOSITORY / ".ci" / "release.py")]
        run = subprocess.run(
            [*command, str(tmp_path / name)],
            cwd=tmp_path,
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        printed.append(run.stdout.splitlines())
    assert len(set(printed[0])) == 2
    assert printed[0] == printed[1]


LIST_PACKAGES = """
import json, sys
target = sys.argv[sys.argv.index("--output-file") + 1]
lines = [line for line in open(sys.argv[-1]) if "==" in line]
components = [{"name": line.partition("==")[0], "description": line} for line in lines]
with open(target, "w") as stream:
    json.dump({"metadata": {"component": {}}, "components": components}, stream)
"""


@pytest.mark.further
@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="a release is made of a commit")
@pytest.mark.usefixtures("git_of_anybody")
def test_a_release_lists_what_is_committed_and_nothing_else(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{REPOSITORY}", clone], check=True)
    shutil.copy(REPOSITORY / ".ci" / "release.py", clone / ".ci")
    (clone / "edl_horovod" / "__init__.py").write_text('__version__ = "99"\n')
    for lock in ("locks/client.txt", "edl_horovod/horovod_build/packages.txt"):
        with (clone / lock).open("a") as stream:
            stream.write("uncommitted==1\n")
    for patch in clone.glob("edl_horovod/horovod_build/patches/*.patch"):
        patch.write_text("uncommitted")
    (tmp_path / "cyclonedx_py.py").write_text(LIST_PACKAGES)
    subprocess.run(
        [sys.executable, clone / ".ci" / "release.py", tmp_path / "dist"],
        env={**os.environ, "PYTHONPATH": f"{clone}{os.pathsep}{tmp_path}"},
        check=True,
        timeout=200,
    )
    (bom,) = (tmp_path / "dist").glob("*.cdx.json")
    assert '"name": "horovod"' in bom.read_text()
    assert "uncommitted" not in bom.read_text()
    assert "99" not in bom.name
