"""The list of what runs for each framework names every test of whole jobs."""

from pathlib import Path

import pytest

from tests.frameworks import FRAMEWORKS
from tests.integration import which_frameworks
from tests.integration.which_frameworks import EACH, LONG, ONCE, frameworks_for


def test_every_file_of_tests_is_in_one_list() -> None:
    folder = Path(which_frameworks.__file__).parent
    files = sorted(path.stem for path in folder.glob("test_*.py"))
    once = {name for name in ONCE if "." not in name}
    assert sorted([*EACH, *LONG, *once]) == files


def test_others_than_the_first_are_long_where_the_list_says_so() -> None:
    first, *others = FRAMEWORKS
    assert frameworks_for("test_elastic", "test_any") == FRAMEWORKS
    found = frameworks_for("test_stop", "test_any")
    assert found[0] is first
    assert [each.values for each in found[1:]] == [each.values for each in others]
    assert all(pytest.mark.long.mark in [mark.mark for mark in each.marks] for each in found[1:])
    assert frameworks_for("test_prepare", "test_any") == []


def test_a_file_that_is_in_no_list_is_an_error() -> None:
    with pytest.raises(KeyError, match="test_new is in no list"):
        frameworks_for("test_new", "test_any")
