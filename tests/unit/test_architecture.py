"""The page on the architecture names packages, files and tests that are there."""

import re
from pathlib import Path

import pytest

from tests.named import is_test

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:edl_horovod|tests|conf)/[\w./]+?)(?:::\w+)?`", PAGE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
TABLES = ("FRAMEWORKS", "SCHEMES", "FORMATS", "TARGETS", "TASKS", "DISPLAYS", "VERBS", "CHECKS")


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_there(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_every_named_test_is_there(path, name):
    assert is_test(path, name)


def test_every_package_is_named():
    packages = {path.parent.name for path in (ROOT / "edl_horovod").glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_where_the_page_says(table):
    (path,) = re.findall(rf"`{table}`[^|]* in `([\w/.]+)`", PAGE)
    assert re.search(rf"^{table}\b.*= ", (ROOT / path).read_text(), re.MULTILINE)
