"""`edl setup-horovod` in an environment of its own, with a CMake that compiles nothing.

All else is real: pip, its index, Horovod's source with our patches, and the installation.
"""

import os
import shutil
import signal
import subprocess
import venv
from pathlib import Path

import pytest
import yaml

from tests.waiting import is_running, wait_until

REPOSITORY = Path(__file__).parents[2]
MODULE = "edl_horovod.horovod_build"
CMAKE = """#!/bin/sh
case $1 in
  --version) echo cmake version 3.28.0; exit;;
  --build) ;;
  *) exit;;
esac
echo "$$" >> "$BUILDS"
for percentage in ' 10' ' 50' 100; do echo "[$percentage%] Building CXX object"; done
if [ "$WHAT_CMAKE_DOES" = fail ]; then
  echo 'horovod.cc:1: fatal error: no_such_header.h: No such file or directory'; exit 1
fi
if [ "$WHAT_CMAKE_DOES" = hang ]; then sleep 600; fi
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The packages of a Python with pip, one called torch, and our sources."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    dist_info = packages / "torch-2.13.0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    (packages / "yaml").symlink_to(Path(yaml.__file__).parent)
    (packages / "sources.pth").write_text(f"{REPOSITORY}\n")
    return packages


@pytest.fixture
def environment(packages, tmp_path):
    """Its user's folders, with the tools of a build; the environment is `venv`."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("g++", "make"):
        (tools / name).symlink_to(shutil.which("true"))
    (tools / "cmake").write_text(CMAKE)
    (tools / "cmake").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "venv").symlink_to(packages.parents[2])
    yield tmp_path
    for path in packages.glob("horovod*"):
        shutil.rmtree(path)


def start(environment, *words, does="nothing", tools="tools"):
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [environment / "venv" / "bin" / "python", "-m", *words],
        cwd=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0o077,
        env={
            **inherited,
            "PATH": f"{environment / tools}:/usr/bin:/bin",
            "TMPDIR": str(environment / "tmp"),
            "XDG_CACHE_HOME": str(environment / "cache"),
            "WHAT_CMAKE_DOES": does,
            "BUILDS": str(environment / "builds"),
        },
    )


def set_up(environment, *words, **options):
    with start(environment, "edl_horovod", "setup-horovod", *words, **options) as process:
        out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def cached(environment):
    return sorted(path.suffix for path in (environment / "cache").glob("edl_horovod/horovod/*"))


def builds(environment):
    return (environment / "builds").read_text().split()


def installed(environment):
    command = [environment / "venv" / "bin" / "python", "-m", "pip", "list", "--format=freeze"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {line.partition("==")[0] for line in run.stdout.splitlines()}


@pytest.mark.long
def test_it_builds_once_and_takes_the_wheel_from_the_cache_at_once(environment):
    code, out, err = set_up(environment, "--dry-run")
    assert code == 0, err
    assert "the wheel" in out
    assert not (environment / "cache").exists()

    code, out, err = set_up(environment)
    assert code == 0, err
    assert "Compiling Horovod: 50 %" in err
    assert cached(environment) == [".txt", ".whl"]
    assert not list((environment / "tmp").iterdir())
    # What the build needed is not in the user's environment.
    assert installed(environment) & {"horovod", "patch-ng", "packaging"} == {"horovod"}
    assert "is installed" in set_up(environment, "--dry-run")[1]

    command = [environment / "venv" / "bin" / "python", "-m", "pip", "uninstall", "-qy", "horovod"]
    subprocess.run(command, check=True, timeout=60)
    shutil.rmtree(environment / "tools")
    code, out, err = set_up(environment, "--wheel-dir", str(environment / "wheels"))
    assert code == 0, err
    assert "horovod" in installed(environment)
    assert len(list((environment / "wheels").glob("*.whl"))) == 1
    assert len(builds(environment)) == 1


@pytest.mark.long
def test_a_build_that_fails_says_why_and_where_its_log_is(environment):
    wheels = environment / "wheels"
    code, _, err = set_up(environment, "--wheel-dir", str(wheels), does="fail")
    assert code == 1
    assert "no_such_header.h" in err
    (log,) = (environment / "cache").glob("edl_horovod/horovod/*")
    assert str(log) in err
    assert not list(wheels.iterdir())
    assert "no_such_header" in log.read_text()
    assert not list((environment / "tmp").iterdir())
    assert "horovod" not in installed(environment)


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.further)]
)
def test_an_interrupted_build_leaves_nothing(environment, number):
    with start(environment, "edl_horovod", "setup-horovod", does="hang") as process:
        try:
            begun = environment / "builds"
            wait_until(begun.exists, "a build", seconds=200)
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    (cmake,) = builds(environment)
    wait_until(lambda: not is_running(cmake), "the end of the compiler")
    assert cached(environment) == []
    assert not list((environment / "tmp").iterdir())


@pytest.mark.further
def test_of_two_that_begin_at_once_one_builds(environment):
    processes = [start(environment, MODULE) for _ in range(2)]
    outputs = [process.communicate(timeout=280) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert len(builds(environment)) == 1
