"""Checks that the programs and packages of a job's processes are installed on this machine."""

import importlib.util
import mmap
import os
import shutil
from pathlib import Path

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.supervisor.plan import Command

_BUILD = "edl setup-horovod"


def require_worker_packages(framework: str) -> None:
    """Check that the workers' packages are installed: one error, not a traceback in each worker.

    Raises:
        ConfigError: The framework's ring does not work with the environment.
        MissingDependency: One of the framework's packages, or Horovod, is not installed.
    """
    entry = FRAMEWORKS[framework]
    entry.check_environment(os.environ)
    needed = (*entry.packages, "horovod")
    missing = [package for package in needed if not is_installed(package)]
    if missing:
        raise MissingDependency(
            f"The job's workers need {', '.join(needed[:-1])} and {needed[-1]}, and"
            f" {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            hint=f"Run {_BUILD}, which builds it for this environment."
            if missing == ["horovod"]
            else f"In a clone of edl_horovod, make setup FRAMEWORK={framework} makes an environment"
            " that has all of them in .venv; or for this one,"
            f" {how_to_install(entry.extra)} and then {_BUILD}",
        )
    if entry.horovod and _library(entry.horovod) is None:
        raise MissingDependency(
            f"The Horovod that is installed was built without {entry.horovod}, which the job's"
            f" workers need for framework={framework}.",
            hint=f"Run {_BUILD}, which builds it for what is installed in this environment.",
        )


def require_framework(framework: str) -> None:
    """Check that a framework's packages are installed, for a process without a ring.

    Raises:
        ConfigError: The framework's ring does not work with the environment.
        MissingDependency: One of the framework's packages is not installed.
    """
    entry = FRAMEWORKS[framework]
    entry.check_environment(os.environ)
    if missing := [package for package in entry.packages if not is_installed(package)]:
        raise MissingDependency(
            f"This needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not"
            " installed.",
            hint=f"To have it, {how_to_install(entry.extra)}.",
        )


def require_mpi(ring: Command) -> None:
    """Check that MPI is installed, for a static ring.

    Raises:
        MissingDependency: `mpirun` or mpi4py is not installed.
    """
    if shutil.which(ring.argv[0]) is None or not is_installed("mpi4py"):
        raise MissingDependency(
            "launch=mpi needs mpirun and mpi4py, and one of them is not here.",
            hint="Use launch=local, which needs no MPI; or"
            f" {how_to_install('mpi')} and then {_BUILD}",
        )


def is_built_with(half: str, function: bytes) -> bool:
    """Whether the library of Horovod for a framework names a function of another library.

    It is not loaded for that, because loading it needs the framework, which takes seconds.
    """
    library = _library(half)
    if library is None:
        return False
    with (
        library.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(function) >= 0


def _library(half: str) -> Path | None:
    """The library of Horovod for a framework; its Python files are always installed."""
    # `find_spec` of the module itself would import the package that it is in.
    package, _, name = half.partition(".")
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((path for folder in folders for path in Path(folder, name).glob("mpi_lib*")), None)


def is_installed(package: str) -> bool:
    """Whether a package can be imported, as far as that can be seen without doing it."""
    return importlib.util.find_spec(package) is not None
