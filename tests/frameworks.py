"""The one list of what tests of whole jobs run with."""

import importlib.util
from pathlib import Path

import pytest

__all__ = [
    "FIRST",
    "FIRST_IN_CI",
    "FIRST_SOON",
    "FRAMEWORKS",
    "HALVES",
    "NEEDS_KERAS",
    "NEEDS_TORCH",
    "QUICKEST",
    "QUICKEST_IN_CI",
    "is_there",
]

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


def _one_soon(soon, mark):
    return [
        parameter
        if parameter.values == (soon,)
        else pytest.param(*parameter.values, marks=[*parameter.marks, mark])
        for parameter in FRAMEWORKS
    ]


FIRST_SOON = _one_soon(FIRST, pytest.mark.long)
"""The first framework that is set up in `make test`, the others in `make test-all`."""
FIRST_IN_CI = _one_soon(FIRST, pytest.mark.further)
"""The same, but the others only at night."""
QUICKEST = "torch" if is_there("torch") else FIRST
"""Its ranks start soonest, for what is long and the same for all."""
QUICKEST_IN_CI = _one_soon(QUICKEST, pytest.mark.further)
"""For tests that are long anyway: this framework in CI, the others at night."""
