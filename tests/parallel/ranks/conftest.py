"""Tests here are one rank of a ring; each names by its marker the sizes that it is for."""

import os

import pytest


def pytest_collection_modifyitems(config, items):
    size = int(os.environ["RING_SIZE"])
    kept = [
        item
        for item in items
        if not (marker := item.get_closest_marker("world_size")) or size in marker.args
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session")
def world():
    """This rank's ring, formed as horovodrun described it."""
    import horovod.tensorflow as hvd

    from edl_horovod.frameworks.world import World

    # The rank knows its place already; 1 would ask the elastic driver, which is not there.
    os.environ["HOROVOD_ELASTIC"] = "0"
    hvd.init()
    os.environ["HOROVOD_ELASTIC"] = "1"
    yield World(rank=hvd.rank(), size=hvd.size(), generation=1)
    hvd.shutdown()
