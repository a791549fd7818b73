"""Lines and their targets, and the pages, measured as a whole or in part."""

import pytest

from benchmarks import report
from benchmarks.report import Line, Measured, Page, Results, over
from benchmarks.run import SideFailed, reason_of
from benchmarks.training import lower_bound

FIRST = {"machine": "a processor, 2 cores, 24 GiB", "commit": "aaa", "load": 0.1}
FIRST["date"] = "2026-01-02 03:04 UTC"


def line(*values, side="ours", event="a join", **targets):
    return Line(event, side, values, **targets)


@pytest.mark.parametrize(
    ("measured", "is_reached"),
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
def test_a_line_is_reached_if_all_its_targets_are(measured, is_reached):
    assert measured.is_reached is is_reached


def test_a_line_shows_figures_targets_and_why_it_was_not_measured():
    cells = line(0.1, 0.2, 0.9, most_median=0.12, most=1.0).cells()
    assert cells[2:6] == ("0.100 s / 0.200 s / 0.900 s", "3", "median 0.120 s; max 1.000 s", "NO")
    cells = line(most=1.0, detail="no torch").cells()
    assert cells[2:] == ("not measured", "", "max 1.000 s", "NO", "no torch")


def test_over_is_a_ratio_of_medians():
    ratio = over("join", line(0.1, 0.2, 0.3), line(6.0), most_median=1 / 30)
    assert ratio.values == pytest.approx((1 / 30,))
    assert "1 : 30" in ratio.detail
    assert over("join", line(0.1), line(), most_median=1.0).is_reached is False


def test_the_lower_bound_of_ten_values_is_the_third_lowest():
    assert lower_bound([0.1 * number for number in range(10)]) == pytest.approx(0.2)


def test_the_reason_of_a_failure_is_one_line_of_a_table():
    error = SideFailed(
        "x ended with 1. Its log ends:\nTraceback\n  a | b\nTypeError:\tno such setting\n"
    )
    assert reason_of(error) == "x ended with 1. Its log ends: TypeError: no such setting"


def measured(*lines, is_quick=False, **surroundings):
    results = Results(lines=list(lines), notes=["A note."], figures={"x": [1.0]})
    return Measured(results=results, seconds=60.0, is_quick=is_quick, **{**FIRST, **surroundings})


def page_of(*parts, **options):
    parts = parts[0] if isinstance(parts[0], dict) else dict.fromkeys(parts)
    return Page(module="x", description="Of rings.", parts=parts, **options)


def with_places(*places):
    """A page with a place for the results of some parts below each heading."""
    sections = [f"## {p}\nHow.\n<!-- measured: {p} -->\nold\n<!-- end -->\n" for p in places]
    return "# Of rings\n" + "".join(sections)


def test_parts_come_back_as_they_were_kept(tmp_path):
    assert report.load(tmp_path / "page.json") == {}
    parts = {"one": measured(line(1.0, 2.0, least_median=1.0)), "two": measured(is_quick=True)}
    report.save(tmp_path / "page.json", parts)
    assert report.load(tmp_path / "page.json") == parts


def test_a_page_says_of_each_part_when_and_where_it_was_measured_and_what_is_missing():
    parts = {
        "second": measured(line(0.5, least_median=1.0), commit="bbb", machine="another machine"),
        "first": measured(line(1.5, least_median=1.0)),
    }
    page, places = page_of("first", "second", "third"), ("", "first", "second", "third")
    text = report.to_markdown(page, with_places(*places), parts)
    assert text.startswith("# Of rings\n## \nHow.\n")
    assert "old" not in text
    assert report.to_markdown(page, text, parts) == text
    first, second, third = (text.index(f"## {name}") for name in places[1:])
    assert first < text.index("commit aaa") < second < text.index("commit bbb") < third
    assert "another machine;" in text[second:third]
    assert "different machines" in text[:first]
    assert "Not measured" in text[third:]
    assert "A note." in text
    assert ": 1 of 1." in text[first:second]
    assert ": 0 of 1." in text[second:third]


def test_lines_of_one_event_stand_together_whatever_part_they_are_of():
    def joins(lines):
        return [over("a ratio", *lines[::2], most_median=1.0)] if lines else []

    parts = {
        "ours": measured(line(1.0), line(5.0, event="a kill")),
        "peers": measured(line(2.0, side="a peer"), is_quick=True),
    }
    page = page_of("ours", "peers", more_lines=joins)
    events = [(line.event, line.side) for line in page.lines(["ours", "peers"], parts)]
    assert events == [
        ("a join", "ours"),
        ("a join", "a peer"),
        ("a kill", "ours"),
        ("a ratio", "ours / a peer"),
    ]
    text = report.to_markdown(page, with_places("", "ours peers"), parts)
    assert "- `ours`: Measured 2026" in text
    assert "different machines" not in text
    assert "- `peers`: **A quick" in text


def test_a_part_that_fails_is_a_line_and_the_others_go_on(tmp_path):
    def fail(run):
        raise SideFailed("no ring")

    page = page_of({"bad": fail, "good": lambda run: [line(1.0)]})
    file = tmp_path / "docs" / "page.md"
    args = report.parser_of(page).parse_args(["--write", str(file)])
    assert report.measure(page, args, report.Run) == 1
    bad = "| bad | edl_horovod | not measured |  | max 0.000 s | NO | no ring |"
    assert bad in file.read_text()

    args = report.parser_of(page).parse_args(["--quick", "--only", "good", "--write", str(file)])
    assert report.measure(page, args, lambda folder: report.Run(folder, is_quick=True)) == 0
    text = file.read_text()
    assert "no ring" in text
    assert "**A quick run" in text
