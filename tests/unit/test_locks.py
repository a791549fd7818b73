"""All that the set-up and the images install is pinned by hash, and as constraints.txt says."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETS = load(LOCKS / "lock.py").SETS


def locked(name):
    """Names and versions of a lock; each line has a hash, and names nothing else."""
    lines = (LOCKS / f"{name}.txt").read_text().splitlines()
    found = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(found), f"{name}: a line without a hash"
    return {canonicalize_name(it[1]): it[2] for it in found}


def constraints():
    lines = (
        line.partition("#")[0].strip()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.fixture
def ours(monkeypatch):
    """What setup.py says."""
    said = {}
    monkeypatch.setattr(setuptools, "setup", lambda **fields: said.update(fields))
    runpy.run_path(str(ROOT / "setup.py"))
    return said


def wanted(requirements, ours):
    """Names that a set asks for by itself: packages, or extras of ours."""
    names = set()
    for text in requirements:
        if text.startswith(".["):
            extras = [ours["extras_require"][extra] for extra in text[2:-1].split(",")]
            names |= {Requirement(it).name for it in sum(extras, ours["install_requires"])}
        else:
            names.add(text)
    return set(map(canonicalize_name, names))


@pytest.mark.parametrize("name", SETS)
def test_a_lock_has_what_its_set_asks_for_as_constraints_say(name, ours):
    found, pins = locked(name), constraints()
    assert wanted(SETS[name], ours) <= set(found), "run `make lock`"
    # PyTorch's build for CPUs is of the pinned version.
    public = {it: version.removesuffix("+cpu") for it, version in found.items()}
    others = {it: version for it, version in public.items() if pins.get(it, version) != version}
    assert not others, "run `make lock`"


def installs(path):
    """The pip commands of a Makefile or a Dockerfile, but for the peer of the benchmarks."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    parts = [part for line in lines if not line.startswith("PIP :=") for part in line.split("&&")]
    return [it for it in parts if re.search(r"pip install|\$\(PIP\)", it) and "TORCH" not in it]


@pytest.mark.parametrize("path", ["Makefile", "docker/Dockerfile", "docker/Dockerfile.cuda"])
def test_nothing_is_installed_or_built_with_what_is_not_pinned_by_hash(path):
    found = installs(ROOT / path)
    assert found
    for command in found:
        assert "--require-hashes" in command or "--no-deps" in command, command
        # All that builds need is in that lock, which holds nothing that must be built.
        assert "locks/build.txt" in command or "--no-build-isolation" in command, command
