"""What a coordinator saves for the next one of its job."""

import json
from dataclasses import asdict

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
    # A field of a newer version is passed over.
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "blue"}))
    assert saved.load(path) == RING


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ""),
        ('{"port": 7}', ""),
        (json.dumps({**asdict(RING), "port": "4000"}), "'port'"),
        (json.dumps({**asdict(RING), "orders": ["1"]}), "'orders'"),
    ],
)
def test_a_file_or_a_field_that_is_damaged_is_named(tmp_path, content, named):
    path = tmp_path / "coordinator.json"
    path.write_text(content)
    with pytest.raises(JobFailed) as caught:
        saved.load(path)
    assert all(text in str(caught.value) for text in ("coordinator.json", named))
    assert caught.value.hint
