"""What `edl setup-horovod` does is what its plan says."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from edl_horovod.cli.verbs import setup_horovod
from edl_horovod.errors import MissingDependency
from edl_horovod.horovod_build.recipe import find_target

# Looking for pip says it in a process whose tests have compiled a step of PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")


class Environment:
    """PyTorch in a folder of packages, on a machine without tools, and with the user's wheels."""

    def __init__(self, folder):
        self.packages, self.wheels = folder / "packages", folder / "wheels"
        self.cache = folder / "cache" / "edl_horovod" / "horovod"
        self._write("torch-2.13.0", {"METADATA": "Metadata-Version: 2.1\nVersion: 2.13.0\n"})

    def install(self):
        """Let our Horovod be installed."""
        self._write("horovod-0.28.1", {"WHEEL": f"Build: {find_target().build_tag}\n"})

    def keep_wheel(self):
        self.cache.mkdir(parents=True)
        (self.cache / f"{find_target().name}-py3-none-any.whl").touch()

    def _write(self, name, files):
        info = self.packages / f"{name}.dist-info"
        info.mkdir(parents=True)
        for file, text in files.items():
            (info / file).write_text(text)
        # Python looks again into a folder whose time has changed, which the file system may round.
        os.utime(self.packages, ns=(time.time_ns(),) * 2)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    (tmp_path / "prefix").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    environment = Environment(tmp_path)
    # In front of this environment's own Horovod.
    monkeypatch.syspath_prepend(environment.packages)
    return environment


def edl(*words):
    return setup_horovod.run("setup-horovod", "Build Horovod", words)


def test_an_installed_horovod_needs_nothing(environment, capsys):
    environment.install()
    assert edl("--dry-run") == 0
    assert "is installed" in capsys.readouterr().out
    assert edl() == 0


def test_a_folder_without_the_wheel_of_an_installed_horovod_has_it_built(environment, capsys):
    environment.install()
    for words in (["--dry-run"], []):
        with pytest.raises(MissingDependency):
            edl("--wheel-dir", str(environment.wheels), *words)
    out = capsys.readouterr().out
    assert "build the" in out
    assert "install" not in out


def test_a_folder_gets_the_wheel_of_the_cache(environment, capsys):
    environment.install()
    environment.keep_wheel()
    assert edl("--wheel-dir", str(environment.wheels), "--dry-run") == 0
    assert "copy the" in capsys.readouterr().out
    assert not environment.wheels.exists()
    assert edl("--wheel-dir", str(environment.wheels)) == 0
    assert [path.suffix for path in sorted(environment.wheels.iterdir())] == [".whl", ".txt"]
    assert edl("--wheel-dir", str(environment.wheels), "--dry-run") == 0
    assert "is installed" in capsys.readouterr().out


def test_of_two_at_once_one_installs(environment, monkeypatch):
    environment.keep_wheel()
    real, num_installs, counting = subprocess.run, 0, threading.Lock()

    def run(command, **options):
        nonlocal num_installs
        if "install" not in command:
            return real(command, **options)
        with counting:
            num_installs += 1
        time.sleep(0.2)
        environment.install()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: edl(), range(2))) == [0, 0]
    assert num_installs == 1
