"""Tests of whole jobs on a GPU, which all their ranks share; skipped where there is none."""

from pathlib import Path

import pytest

from tests.frameworks import NEEDS_TORCH
from tests.integration.conftest import start

__all__ = ["framework", "start"]


@pytest.fixture
def framework():
    """The tests' models are PyTorch's."""
    return "torch"


def _num_gpus():
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    if mine and not _num_gpus():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="no GPU that PyTorch can use"))
    for item in mine:
        item.add_marker(NEEDS_TORCH)
