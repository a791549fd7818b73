"""The one list of what tests of whole jobs run with."""

import importlib.util
from pathlib import Path

import pytest

__all__ = ["FIRST", "FIRST_SOON", "FRAMEWORKS", "HALVES", "NEEDS_KERAS", "NEEDS_TORCH", "is_there"]

HALVES = {"keras": "tensorflow", "torch": "torch"}
"""What the half of Horovod is called that a framework needs."""


def is_there(half):
    """Whether Horovod was built for a framework in this environment."""
    spec = importlib.util.find_spec(f"horovod.{half}")
    folders = spec.submodule_search_locations if spec is not None else []
    return any(any(Path(folder).glob("mpi_lib*")) for folder in folders)


def _needs(name):
    half = HALVES[name]
    return pytest.mark.skipif(not is_there(half), reason=f"make setup FRAMEWORKS={half}")


NEEDS_KERAS, NEEDS_TORCH = _needs("keras"), _needs("torch")
FRAMEWORKS = [pytest.param("keras", marks=NEEDS_KERAS), pytest.param("torch", marks=NEEDS_TORCH)]
FIRST = next((name for name, half in HALVES.items() if is_there(half)), "keras")
FIRST_SOON = [
    parameter
    if parameter.values == (FIRST,)
    else pytest.param(*parameter.values, marks=[*parameter.marks, pytest.mark.long])
    for parameter in FRAMEWORKS
]
"""The first framework that is set up in `make test`, the others in `make test-all`."""
