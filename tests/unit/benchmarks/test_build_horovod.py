"""Horovod as released is built as ours is, but for TensorFlow alone."""

import subprocess
import sys

import pytest

from benchmarks.peers import build_horovod
from edl_horovod.horovod_build import recipe


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An environment with both frameworks, on a machine with the tools of a build."""
    packages, tools = tmp_path / "packages", tmp_path / "tools"
    for name in ("tensorflow_cpu-2.21.0", "torch-2.13.0"):
        info = packages / f"{name}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nVersion: 2.21.0\n")
    tools.mkdir()
    for name in ("g++", "cmake", "make"):
        (tools / name).touch(mode=0o755)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def test_pip_builds_the_released_version_without_its_half_for_pytorch(machine, monkeypatch):
    runs = []

    def run(command, **options):
        runs.append((command, options.get("env")))
        return subprocess.CompletedProcess(command, 0, stdout="/include", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["build_horovod", str(machine / "folder")])
    assert build_horovod.main() == 0
    command, environment = runs[-1]
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[-3:] == ["--target", str(machine / "folder"), f"horovod=={recipe.VERSION}"]
    assert environment["HOROVOD_WITH_TENSORFLOW"] == "1"
    assert environment["HOROVOD_WITHOUT_PYTORCH"] == "1"
    assert "HOROVOD_WITH_PYTORCH" not in environment
