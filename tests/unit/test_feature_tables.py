"""The tables of Keras features and of formats name tests that are there."""

import re
from pathlib import Path

import pytest

from tests.named import is_test

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
FOLDERS = ("tests/component/frameworks/keras", "tests/component/ring")
"""Where a file lies that is named without its folder."""
NAME = re.compile(r"`([\w/]*test_\w+(?:\.py)?(?:::\w+)?)`")


def rows_of(page):
    """The first and the last cell of each row of the tables whose last column names tests."""
    rows, is_table = [], False
    for line in (REFERENCE / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            is_table = False
        elif cells[-1] in ("test", "tests"):
            is_table = True
        elif is_table and not set(line) <= set("|- "):
            rows.append((cells[0], cells[-1]))
    return rows


ROWS = [(page, *row) for page in ("keras.md", "data-formats.md") for row in rows_of(page)]


def test_there_are_tables():
    counts = [sum(row[0] == page for row in ROWS) for page in ("keras.md", "data-formats.md")]
    assert counts[0] >= 40
    assert counts[1] >= 13


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("page", "feature", "shown"), ROWS, ids=lambda text: text[:40])
def test_every_row_names_tests_that_are_there(page, feature, shown):
    names = NAME.findall(shown)
    assert names or shown.startswith("the same"), feature
    for name in names:
        file, _, function = name.partition("::")
        if not file.endswith(".py"):
            file, function = "", file
        places = [REPOSITORY / file] if "/" in file else [REPOSITORY / f / file for f in FOLDERS]
        files = [path for place in places for path in ([place] if file else place.glob("*.py"))]
        files = [path for path in files if path.exists()]
        assert files, name
        assert not function or any(is_test(path, function) for path in files), name
