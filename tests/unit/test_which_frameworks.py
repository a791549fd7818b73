"""The list of what runs for each framework names every test of whole jobs."""

from pathlib import Path

import pytest

from tests.frameworks import FIRST_SOON, FRAMEWORKS, HALVES, QUICKEST, is_there
from tests.integration import which_frameworks
from tests.integration.which_frameworks import (
    CORE,
    EACH,
    EACH_TESTS,
    LONG,
    ONCE,
    frameworks_for,
)


def test_every_file_of_tests_is_in_one_list():
    folder = Path(which_frameworks.__file__).parent
    files = sorted(path.stem for path in folder.glob("test_*.py"))
    once = {name for name in ONCE if "." not in name}
    assert sorted([*EACH, *CORE, *LONG, *once]) == files


def is_long(parameter) -> bool:
    return bool({"long", "further"} & {mark.name for mark in parameter.marks})


@pytest.mark.parametrize("module", ["test_stop", "test_scale", "test_elastic"])
def test_one_framework_is_in_make_test_and_the_others_are_long(module):
    parameters = frameworks_for(module, "test_any")
    assert [case.values for case in parameters] == [case.values for case in FRAMEWORKS]
    assert sorted(map(is_long, parameters)) == [False, *[True] * (len(FRAMEWORKS) - 1)]
    soon = next(case.values[0] for case in parameters if not is_long(case))
    assert is_there(HALVES[soon]) or not any(map(is_there, HALVES.values()))


def test_long_tests_of_what_is_the_same_for_all_run_where_ranks_start_soonest():
    for module in ("test_stop", "test_scale"):
        parameters = frameworks_for(module, "test_any", is_long=True)
        assert [case.values[0] for case in parameters if not is_long(case)] == [QUICKEST]
        assert all(mark.name != "long" for case in parameters for mark in case.marks)
    assert frameworks_for("test_elastic", "test_any", is_long=True) == FIRST_SOON


def test_what_runs_for_every_framework_or_for_none_is_named():
    for name in EACH_TESTS:
        assert frameworks_for(*name.split(".")) == FRAMEWORKS
    assert frameworks_for("test_prepare", "test_any") == []


def test_a_file_that_is_in_no_list_is_an_error():
    with pytest.raises(KeyError, match="test_new"):
        frameworks_for("test_new", "test_any")
