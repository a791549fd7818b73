"""All that the set-up and the images install is pinned by hash, and as constraints.txt says."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK = load(LOCKS / "lock.py")
SETS = LOCK.SETS


def locked(name):
    """The requirements of a lock; each has a hash, and one version."""
    text = LOCK.FILES[name].read_text().replace("\\\n", " ")
    requirements = []
    for line in [line for line in text.splitlines() if not line.startswith("#")]:
        words = [word for word in line.split("--hash=")[0].split() if word]
        assert HASH.search(line), f"{name}: a line without a hash: {line}"
        requirements.append(Requirement(" ".join(words)))
    return requirements


def version(requirement):
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    # PyTorch's build for CPUs is of the pinned version.
    return specifier.version.removesuffix("+cpu")


def constraints():
    lines = (
        line.partition("#")[0].strip()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(name): version for name, version in pairs}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def of_extra(extra):
    """The requirements of an extra, with those of the extras that it names."""
    requirements = map(Requirement, PROJECT["optional-dependencies"][extra])
    for requirement in requirements:
        if requirement.name == PROJECT["name"]:
            for name in requirement.extras:
                yield from of_extra(name)
        else:
            yield requirement


def wanted(requirements):
    """What a set asks for by itself: packages, or extras of ours."""
    for text in requirements:
        if text.startswith(".["):
            yield from map(Requirement, PROJECT["dependencies"])
            for extra in text[2:-1].split(","):
                yield from of_extra(extra)
        else:
            yield Requirement(text)


@pytest.mark.parametrize("name", SETS)
def test_a_lock_has_what_its_set_asks_for_as_constraints_say(name):
    versions = {canonicalize_name(pin.name): version(pin) for pin in locked(name)}
    for requirement in wanted(SETS[name]):
        assert versions.get(canonicalize_name(requirement.name)) in requirement.specifier, (
            f"run `make lock`: {requirement}"
        )
    pins = constraints()
    assert {package: pins.get(package, pin) for package, pin in versions.items()} == versions


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_python_and_processor_has_one_tensorflow(python, machine):
    place = {"python_version": python, "platform_machine": machine, "sys_platform": "linux"}
    names = [
        pin.name
        for pin in locked("tensorflow")
        if pin.name.startswith("tensorflow") and (pin.marker is None or pin.marker.evaluate(place))
    ]
    assert names == ["tensorflow-cpu" if machine == "x86_64" else "tensorflow"]


def installs(path):
    """The pip commands of a Makefile or a Dockerfile, but for the peer of the benchmarks."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    parts = [part for line in lines if not line.startswith("PIP :=") for part in line.split("&&")]
    return [p for p in parts if re.search(r"pip install|\$\(PIP\)", p) and "TORCH" not in p]


@pytest.mark.parametrize("path", ["Makefile", "docker/Dockerfile", "docker/Dockerfile.cuda"])
def test_nothing_is_installed_or_built_with_what_is_not_pinned_by_hash(path):
    commands = installs(ROOT / path)
    assert commands
    for command in commands:
        assert "--require-hashes" in command or "--no-deps" in command, command
        # All that builds need is in that lock, which holds nothing that must be built.
        assert "locks/build.txt" in command or "--no-build-isolation" in command, command
