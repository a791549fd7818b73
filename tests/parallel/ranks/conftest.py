"""Tests here are one rank of a ring; each names by its marker the sizes that it is for.

Those in `both` are for each framework, RING_FRAMEWORK says which; the others' folders are named
after theirs.
"""

import os

import pytest

from edl_horovod.ring import state as ring_state
from tests.parallel.ring_framework import NAME, ring_framework


def pytest_ignore_collect(collection_path):
    return True if collection_path.name in {"keras", "torch"} - {NAME} else None


def pytest_collection_modifyitems(config, items):
    size = int(os.environ["RING_SIZE"])
    items_of_size = [
        item
        for item in items
        if not (marker := item.get_closest_marker("world_size")) or size in marker.args
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in items_of_size])
    items[:] = items_of_size


@pytest.fixture
def small_slices(monkeypatch, request):
    """Let newcomers have the state of a small model in many slices, of so many bytes."""
    slice_bytes = getattr(request, "param", 60)
    sizes = dict.fromkeys(("FIRST_BYTES", "_LEAST_BYTES", "_MOST_BYTES"), slice_bytes)
    for name, size in {**sizes, "_LEAST_STREAMED_BYTES": 1, "_SLICE_BYTES": 300}.items():
        monkeypatch.setattr(ring_state, name, size)


@pytest.fixture(scope="session")
def framework():
    """The framework of this ring's tests."""
    return ring_framework()


@pytest.fixture(scope="session")
def world(framework):
    """This rank's ring, formed as horovodrun described it."""
    # The rank knows its place already; 1 would ask the elastic driver, which is not there.
    os.environ["HOROVOD_ELASTIC"] = "0"
    world = framework.horovod.form_inherited()
    os.environ["HOROVOD_ELASTIC"] = "1"
    yield world
    framework.horovod.leave()
