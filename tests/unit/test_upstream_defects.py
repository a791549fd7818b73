"""The table of upstream defects names tests that are there."""

import re
from pathlib import Path

import pytest

from tests.named import is_test

REPOSITORY = Path(__file__).parents[2]
TABLE = REPOSITORY / "docs" / "explanation" / "upstream-defects.md"
ROW = re.compile(r"^\| (\d+) \|(.+)\|(.+)\|(.+)\|$")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [match.groups() for line in TABLE.read_text().splitlines() if (match := ROW.match(line))]
NAMED = sorted({named for *_, shown in ROWS for named in TEST.findall(shown)})


def test_every_defect_has_its_row():
    assert [int(number) for number, *_ in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 32


@pytest.mark.parametrize("row", ROWS, ids=[number for number, *_ in ROWS])
def test_every_row_has_a_test_or_a_reason(row):
    _, defect, can_happen, shown = (text.strip() for text in row)
    assert defect
    assert can_happen
    names = TEST.sub("", shown).replace("<br>", "").strip()
    assert bool(TEST.search(shown)) != bool(names), "either tests alone, or a reason alone"
    assert not names or names.endswith(".")


@pytest.mark.parametrize(("path", "name"), NAMED, ids=["::".join(named) for named in NAMED])
def test_every_named_test_is_there(path, name):
    assert is_test(path, name)
