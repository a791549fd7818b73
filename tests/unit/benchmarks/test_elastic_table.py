"""Targets and the table."""

import pytest

from benchmarks.elastic.table import Line, Page, over, to_markdown
from benchmarks.report import Surroundings

HERE = Surroundings(
    cpu="a CPU",
    num_cores=2,
    memory_bytes=2**34,
    load=0.1,
    commit="abc",
    date="today",
    versions=(("Python", "3.11"),),
)


def line(*values, **targets):
    return Line(event="a join", side="ours", values=values, **targets)


@pytest.mark.parametrize(
    ("found", "is_reached"),
    [
        (line(0.1, 0.2, 0.9), None),
        (line(0.1, 0.2, 0.9, most_median=0.2), True),
        (line(0.1, 0.3, 0.9, most_median=0.2), False),
        (line(0.1, 0.2, 0.9, most_median=0.2, most=0.8), False),
        (line(0.1, 0.2, 0.9, most=0.9), True),
        (line(96.0, unit="%", least_median=97.0), False),
        (line(98.0, unit="%", least_median=97.0), True),
        (line(most_median=0.2), False),
    ],
)
def test_a_line_is_reached_if_all_its_targets_are(found, is_reached):
    assert found.is_reached is is_reached


def test_over_is_a_ratio_of_medians():
    found = over("join", line(0.1, 0.2, 0.3), line(6.0), most_median=1 / 30)
    assert found.values == pytest.approx((1 / 30,))
    assert "1 : 30" in found.detail


def test_over_without_a_side_is_not_reached():
    assert over("join", line(0.1), line(), most_median=1.0).is_reached is False


def test_markdown_shows_figures_targets_and_what_was_not_measured():
    lines = [line(0.1, 0.2, 0.9, most_median=0.12, most=1.0), line(most=1.0, detail="no torch")]
    words = Page(title="Of rings", command="python -m x", method="By a clock.")
    page = to_markdown(
        lines, HERE, words, is_quick=True, seconds=60.0, pictures=[("two", "two.svg")]
    )
    assert page.startswith("# Of rings\n\nWritten by `python -m x`; do not edit.\n")
    assert "By a clock." in page
    row = next(text for text in page.splitlines() if "0.200 s" in text)
    assert "0.100 s / 0.200 s / 0.900 s | 3 | median 0.120 s; max 1.000 s | NO |" in row
    assert "| not measured |  | max 1.000 s | NO | no torch |" in page
    assert "Targets reached: 0 of 2" in page
    assert "too short to quote" in page
    assert "![two](two.svg)" in page
