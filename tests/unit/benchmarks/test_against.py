"""What the comparison of two checkouts reads from their files and events."""

import zipfile

import pytest

from benchmarks.against.speed import stall, step_seconds
from tests.later import LATER

if LATER:
    import h5py

    from benchmarks.against.weights import differences, digest


def saved(path, *, kernel=(1.0, 2.0), name="dense", date=(2026, 1, 2, 0, 0, 0)):
    """A `.keras` file with one variable."""
    with h5py.File(path.with_suffix(".h5"), "w") as weights:
        weights[f"layers/{name}/vars/0"] = kernel
    with zipfile.ZipFile(path, "w") as parts:
        content = path.with_suffix(".h5").read_bytes()
        parts.writestr(zipfile.ZipInfo("model.weights.h5", date_time=date), content)
    return digest(path)


def test_digest_does_not_depend_on_when_the_model_was_saved(tmp_path):
    late = saved(tmp_path / "b.keras", date=(2027, 1, 2, 0, 0, 0))
    assert saved(tmp_path / "a.keras") == late


@pytest.mark.parametrize(
    "changes", [{"kernel": (1.0, 2.0000000000000004)}, {"kernel": ((1.0, 2.0),)}, {"name": "last"}]
)
def test_digest_depends_on_the_last_bit_on_shapes_and_on_names(tmp_path, changes):
    assert saved(tmp_path / "a.keras") != saved(tmp_path / "b.keras", **changes)


def test_differences_are_named():
    training = {"weights": "ab", "loss": [1.0], "metrics": {}}
    assert differences(training, {**training, "loss": [1.5]}) == ["loss"]
    assert differences(training, dict(training)) == []


def test_a_step_takes_its_share_of_the_time_between_two_events():
    points = [(0.0, 1), (3.0, 100), (5.0, 300), (6.0, 350)]
    events = [{"kind": "step", "time": at, "step": step} for at, step in points]
    assert step_seconds(events, 100) == pytest.approx([0.01, 0.02])


CHANGES = [
    {"kind": "reset", "time": 1.0, "new_size": 1, "seconds": 0.5},
    {"kind": "step", "time": 1.1, "step": 1},
    {"kind": "reset", "time": 7.0, "new_size": 2, "seconds": 0.25},
    {"kind": "worker", "time": 7.1, "state": "warm"},
    {"kind": "step", "time": 7.5, "step": 10},
    {"kind": "step", "time": 7.7, "step": 30},
]


def test_stall_is_from_the_reset_or_the_kill_to_the_end_of_the_first_step_after_it():
    assert stall(CHANGES, 2, 2.0, killed=False) == pytest.approx(0.75)
    assert stall(CHANGES, 2, 6.0, killed=True) == pytest.approx(1.5)


@pytest.mark.parametrize(("size", "since"), [(1, 2.0), (2, 7.2), (3, 2.0)])
def test_there_is_no_stall_before_the_first_step_of_a_ring_of_that_size(size, since):
    assert stall(CHANGES, size, since, killed=False) is None
