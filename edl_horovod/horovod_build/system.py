"""What a machine must have to build Horovod, and which of its packages bring that."""

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.errors import MissingDependency
from edl_horovod.horovod_build.recipe import Target, search_path

_PACKAGES = {"g++": ("g++", "gcc-c++"), "cmake": ("cmake", "cmake"), "make": ("make", "make")}
"""The packages of Debian and of Fedora that bring a program."""
_NEEDED_BYTES = 500_000_000
"""The space for temporary files of a build."""


def require_tools(target: Target) -> None:
    """Check that everything is there before minutes are spent.

    Raises:
        MissingDependency: Something is missing; the message has a sentence for each.
    """
    if sentences := list(_missing(target)):
        raise MissingDependency(
            f"Horovod cannot be built here yet. {' '.join(sentences)}",
            hint="Then run the command again.",
        )


def require_pip() -> None:
    """Check that this environment has pip, which fetches and installs.

    Raises:
        MissingDependency: It does not.
    """
    if importlib.util.find_spec("pip") is None:
        raise MissingDependency(
            "Horovod is built and installed with pip, and this environment has none.",
            received=f"Python {sys.executable}",
            hint="Run python -m ensurepip, or for an environment of uv, uv pip install pip.",
        )


def _missing(target: Target) -> Iterator[str]:
    for program, packages in _PACKAGES.items():
        name = os.environ.get("CXX", program) if program == "g++" else program
        if shutil.which(name, path=search_path()) is None:
            yield _sentence(f"The program {name}", *packages)
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if "torch" in target.frameworks and not headers.exists():
        version = f"python3.{sys.version_info[1]}"
        yield _sentence(f"Python's header {headers}", f"{version}-dev", "python3-devel")
    folder = tempfile.gettempdir()
    if (num_bytes := shutil.disk_usage(folder).free) < _NEEDED_BYTES:
        yield (
            f"The folder of temporary files, {folder}, has {num_bytes / 1e9:.1f} GB free, and the"
            f" build needs {_NEEDED_BYTES / 1e9:.1f} GB: set TMPDIR to another folder, or free some"
            " space."
        )


def _sentence(thing: str, debian: str, fedora: str) -> str:
    return (
        f"{thing} is missing: apt-get install {debian} (Debian, Ubuntu) or dnf install"
        f" {fedora} (Fedora)."
    )
