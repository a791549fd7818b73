"""A Horovod whose patch is missing or too old is known by the number in its library."""

import pytest

from edl_horovod.ring.membership import horovod_patch
from edl_horovod.ring.membership.horovod_patch import NEEDED_VERSION, complaint


def test_a_patch_that_is_new_enough_is_no_complaint():
    assert complaint(NEEDED_VERSION) is None
    assert complaint(NEEDED_VERSION + 1) is None


@pytest.mark.parametrize(
    ("found", "received"),
    [(0, "patch=none, or one without a number;"), (NEEDED_VERSION - 1, "patch=1;")],
)
def test_an_older_patch_is_told_with_both_numbers_and_the_cure(found, received):
    said = complaint(found)
    assert received in said
    assert f"needed: patch={NEEDED_VERSION}" in said
    assert "python docker/horovod/build_wheel.py --install" in said


class Released:
    """A library of Horovod that exports nothing of the patch."""


def test_a_released_horovod_is_given_nothing_to_do(monkeypatch):
    monkeypatch.setattr(horovod_patch, "_library", Released)
    horovod_patch.give_up_connecting()
