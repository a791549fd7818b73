"""What a coordinator saves for the next one of its job."""

import json

import pytest

from edl_horovod.coordinator import saved
from edl_horovod.errors import JobFailed

RING = saved.SavedRing(
    address="127.0.0.1", port=4000, generation=3, members=("a:0:1:2", "b:0:3:4"), orders=(1, 2)
)


def test_a_ring_and_its_file(tmp_path):
    path = tmp_path / "coordinator.json"
    saved.save(path, RING)
    assert saved.load(path) == RING
    assert path.read_text() == (
        '{"address": "127.0.0.1", "port": 4000, "generation": 3, '
        '"members": ["a:0:1:2", "b:0:3:4"], "orders": [1, 2]}'
    )


def test_a_field_of_a_newer_version_is_passed_over(tmp_path):
    path = tmp_path / "coordinator.json"
    saved.save(path, RING)
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "blue"}))
    assert saved.load(path) == RING


@pytest.mark.parametrize(
    ("change", "field"), [({"port": "4000"}, "port"), ({"orders": ["1"]}, "orders")]
)
def test_a_field_that_is_damaged_is_named(tmp_path, change, field):
    path = tmp_path / "coordinator.json"
    saved.save(path, RING)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(JobFailed, match=f"'{field}'"):
        saved.load(path)
