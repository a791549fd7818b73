"""What `edl doctor` looks at on this machine: Python, packages, a ring, disk, limits, GPUs."""

import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.errors import EdlError, how_to_install
from edl_horovod.health import Finding, Level, Scope
from edl_horovod.supervisor import needs
from edl_horovod.supervisor.plan import locate

PYTHONS = ((3, 11), (3, 13))
"""The oldest and the newest Python that the tests are run with."""
LEAST_FREE_BYTES = 1 << 30
LEAST_SHARED_BYTES = 64 << 20
LEAST_OPEN_FILES = 1024
RING_SECONDS = 120.0
GPU_SECONDS = 30.0
_PACKAGE = "edl_horovod"
_FOR_DEVELOPERS = ("dev", "docs", "notebook", "release")
"""Extras that no job needs."""
_REBUILD = "edl setup-horovod"
_ERROR = re.compile(r"\w(Error|Exception)\b")
_OF_RANK = re.compile(r"\[\d+\]<std(?:err|out)>:")


def check_python(_scope: Scope) -> Iterator[Finding]:
    """The version of Python, and this machine's kind."""
    oldest, newest = PYTHONS
    text = f"{platform.python_version()} in {sys.executable}, {platform.platform()}"
    if oldest <= sys.version_info[:2] <= newest:
        yield Finding("OK", text)
        return
    pythons = f"Python {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
    yield Finding("WARN", text, f"Use {pythons}, with which the tests are run.")


def check_versions(_scope: Scope) -> Iterator[Finding]:
    """The versions of packages against the ranges in this package's metadata, and its extras."""
    try:
        by_extra = _requirements()
    except metadata.PackageNotFoundError:
        text = "edl_horovod is not installed, so the versions that it takes are not known."
        yield Finding("NONE", text, "In a clone of edl_horovod: make setup")
        return
    complaints: dict[str, Finding] = {}
    for extra, requirements in by_extra.items():
        for requirement in requirements:
            if complaint := _complaint(requirement, extra):
                complaints.setdefault(requirement.name, complaint)
    if not complaints:
        yield Finding("OK", "All packages are within the ranges of edl_horovod.")
    yield from complaints.values()
    names = sorted({*by_extra} - {"", *_FOR_DEVELOPERS})
    if missing := [name for name in names if not _is_complete(name, by_extra)]:
        text = f"extras that are not installed: {', '.join(missing)}"
        yield Finding("NONE", text, f"To have the first, {how_to_install(missing[0])}.")


def _requirements() -> dict[str, list[Requirement]]:
    """The requirements of each extra for this machine; under "" those of every installation."""
    by_extra: dict[str, list[Requirement]] = {"": []}
    for extra in metadata.metadata(_PACKAGE).get_all("Provides-Extra") or ():
        by_extra[extra] = []
    for requirement in map(Requirement, metadata.requires(_PACKAGE) or ()):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            by_extra[""].append(requirement)
            continue
        for extra, requirements in by_extra.items():
            if extra and marker.evaluate({"extra": extra}):
                requirements.append(requirement)
    return by_extra


def _complaint(requirement: Requirement, extra: str) -> Finding | None:
    """What is wrong with the installed version of a required package; None if nothing is."""
    version = _installed_version(requirement.name)
    hint = f"For a version that fits, {how_to_install(extra) if extra else _HOW_TO_INSTALL}."
    if version is None:
        text = f"{requirement.name} is not installed"
        return None if extra else Finding("FAIL", text, hint)
    if requirement.specifier.contains(version, prereleases=True):
        return None
    text = f"{requirement.name} {version} is not within {requirement.specifier}"
    return Finding("WARN", f"{text}{f', of the extra {extra}' if extra else ''}", hint)


_HOW_TO_INSTALL = "in a clone of edl_horovod, run pip install -c constraints.txt ."


def _is_complete(extra: str, by_extra: Mapping[str, list[Requirement]]) -> bool:
    """Whether all packages of an extra are installed, with those of extras that it names."""
    for requirement in by_extra[extra]:
        if canonicalize_name(requirement.name) == canonicalize_name(_PACKAGE):
            if not all(_is_complete(name, by_extra) for name in requirement.extras):
                return False
        elif _installed_version(requirement.name) is None:
            return False
    return True


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_frameworks(_scope: Scope) -> Iterator[Finding]:
    """One line for each framework: what of it is installed, and whether Horovod has its half."""
    errors = {name: _what_is_missing(name) for name in FRAMEWORKS.loaded()}
    is_any_usable = None in errors.values()
    for name, error in errors.items():
        if error is None:
            versions = ", ".join(map(_version, (*FRAMEWORKS[name].packages, "horovod")))
            yield Finding("OK", f"{name}: {versions}")
            continue
        level: Level = "FAIL"
        if is_any_usable:  # One of them is enough.
            is_there = any(map(needs.is_installed, FRAMEWORKS[name].packages))
            level = "WARN" if is_there else "NONE"
        yield Finding(level, f"{name}: {error.facts}", error.hint)


def _what_is_missing(framework: str) -> EdlError | None:
    try:
        needs.require_worker_packages(framework)
    except EdlError as error:
        return error
    return None


def _usable_frameworks() -> list[str]:
    return [name for name in FRAMEWORKS.loaded() if _what_is_missing(name) is None]


def _halves() -> Iterator[tuple[str, str]]:
    """The frameworks that can be used here and have a half of Horovod, with that half."""
    for name in _usable_frameworks():
        if half := FRAMEWORKS[name].horovod:
            yield name, half


def _version(package: str) -> str:
    for distribution in metadata.packages_distributions().get(package, [package]):
        if version := _installed_version(distribution):
            return f"{distribution} {version}"
    return package


def check_ring(scope: Scope) -> Iterator[Finding]:
    """Two ranks that add their numbers, started by Horovod's own launcher."""
    launcher = shutil.which(locate("horovodrun"))
    if launcher is None:
        yield Finding("FAIL", "There is no horovodrun.", _REBUILD)
        return
    frameworks = _usable_frameworks()
    if not frameworks:
        yield Finding("FAIL", "No framework can be used here: edl doctor frameworks says why.")
    failures = []
    for name in frameworks:
        for finding in _ring_of(name, launcher, scope):
            if finding.level == "FAIL":
                failures.append(finding)
            else:
                yield finding
    # One ring is enough for jobs, but not for a user who asked for them all.
    is_lowered = len(failures) < len(frameworks) and "ring" not in scope.wanted
    for failure in failures:
        yield replace(failure, level="WARN") if is_lowered else failure


def _ring_of(framework: str, launcher: str, scope: Scope) -> Iterator[Finding]:
    program = [sys.executable, "-m", "edl_horovod.worker.sum_of_ranks", framework]
    command = [launcher, "--gloo", "-np", "2", "-H", "localhost:2", *program]
    by_hand = f"See what this prints: {' '.join(command)}"
    run = scope.programs.run(command, seconds=RING_SECONDS)
    if run is None:
        text = f"{framework}: two ranks did not add their numbers within {RING_SECONDS:g} s"
        yield Finding("FAIL", text, by_hand)
        return
    lines = [line.partition("SUM ")[2] for line in run.stdout.splitlines() if "SUM " in line]
    if run.returncode != 0 or not lines:
        cause = _cause(_import_error(framework, scope) or run.stderr or run.stdout)
        text = f"{framework}: two ranks could not add their numbers: {cause}"
        yield Finding("FAIL", text, by_hand)
        return
    outcome = json.loads(lines[0])
    patch = f"Horovod with patch {outcome['patch']}" if outcome["patch"] else "Horovod"
    yield Finding("OK", f"{framework}: two ranks of {patch} add up to {outcome['sum']}")
    if outcome["warning"]:
        yield Finding("WARN", f"{framework}: {outcome['warning']}", _REBUILD)


def _import_error(framework: str, scope: Scope) -> str:
    """What Python prints if the framework cannot be imported; empty if it can.

    The launcher then only says that Horovod lacks Gloo.
    """
    module = FRAMEWORKS[framework].module
    run = scope.programs.run([sys.executable, "-c", f"import {module}"], seconds=RING_SECONDS)
    return run.stderr if run is not None and run.returncode != 0 else ""


def _cause(output: str) -> str:
    """The line of a launcher's output that says best why a rank failed."""
    lines = output.strip().splitlines() or ["nothing was printed"]
    # Below what ranks print, the launcher prints a traceback of its own.
    of_ranks = [line.partition(">:")[2] for line in lines if _OF_RANK.match(line)] or lines
    return next((line for line in reversed(of_ranks) if _ERROR.search(line)), of_ranks[-1])


def check_mpi(_scope: Scope) -> Iterator[Finding]:
    """MPI, with which launch=mpi starts its static rings."""
    program = shutil.which(locate("mpirun"))
    how = f"To have it, {how_to_install('mpi')}. {_REBUILD}"
    absent = [] if program else ["mpirun"]
    absent += [] if needs.is_installed("mpi4py") else ["mpi4py"]
    if absent:
        text = f"not here: {' and '.join(absent)}, which only launch=mpi needs"
        yield Finding("FAIL" if len(absent) == 1 else "NONE", text, how)
        return
    yield Finding("OK", f"{program}, {_version('mpi4py')}")
    for name, half in _halves():
        if not needs.is_built_with(half, b"MPI_Allreduce"):
            text = f"{name}: Horovod was built without MPI, so launch=mpi does not work"
            yield Finding("FAIL", text, _REBUILD)


def check_disk(_scope: Scope) -> Iterator[Finding]:
    """Room on the disk, for temporary files and in shared memory."""
    places = {"this folder": os.getcwd(), "temporary files": tempfile.gettempdir()}
    for name, folder in places.items():
        free = shutil.disk_usage(folder).free
        text = f"{name}, {folder}: {free / 1e9:.1f} GB free"
        if free >= LEAST_FREE_BYTES:
            yield Finding("OK", text)
        else:
            yield Finding("WARN", text, "Free some space, or work in another folder.")
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    text = f"shared memory, {shared}: {free / 1e6:,.0f} MB free"
    if free >= LEAST_SHARED_BYTES:
        yield Finding("OK", text)
    else:
        fix = (
            "Free some, or give the container more: --shm-size=1g, or a volume with medium: Memory."
        )
        yield Finding("WARN", text, fix)


def check_open_files(_scope: Scope) -> Iterator[Finding]:
    """The limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"at most {soft:,}, which may be raised to {hard:,}"
    if soft >= LEAST_OPEN_FILES:
        yield Finding("OK", text)
    else:
        yield Finding("WARN", text, f"ulimit -n {LEAST_OPEN_FILES}")


def check_gpus(scope: Scope) -> Iterator[Finding]:
    """The GPUs, and whether Horovod can use them together."""
    if shutil.which("nvidia-smi") is None:
        yield Finding("NONE", "no GPU: nvidia-smi is not here")
        return
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    run = scope.programs.run(query, seconds=GPU_SECONDS)
    if run is None:
        yield Finding("FAIL", f"nvidia-smi did not answer within {GPU_SECONDS:g} s", _SEE_SMI)
        return
    if run.returncode != 0:
        words = (run.stdout or run.stderr).strip().partition("\n")[0]
        yield Finding("FAIL", f"nvidia-smi failed: {words}", _SEE_SMI)
        return
    for line in run.stdout.splitlines():
        yield Finding("OK", line)
    for name, half in _halves():
        if needs.is_built_with(half, b"ncclCommInitRank"):
            yield Finding("OK", f"{name}: Horovod was built with NCCL")
        else:
            text = (
                f"{name}: Horovod was built without NCCL, so ranks do not use these GPUs together"
            )
            yield Finding("WARN", text, "Build the image of docker/Dockerfile.cuda, or as it does.")


_SEE_SMI = "Repair the driver: see what nvidia-smi prints, and the kernel's log."
