"""Lines and their targets, and the pages, measured as a whole or in part."""

import pytest

from benchmarks import report
from benchmarks.report import Line, Measured, Page, Results, Section, over
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


def test_over_without_a_side_is_not_reached():
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


def section(*parts, **options):
    return Section(title=parts[0], method="How.", parts=dict.fromkeys(parts), **options)


def page_of(*sections):
    return Page(title="Of rings", module="x", introduction="By a clock.", sections=sections)


def test_parts_come_back_as_they_were_kept(tmp_path):
    parts = {"one": measured(line(1.0, 2.0, least_median=1.0)), "two": measured(is_quick=True)}
    report.save(tmp_path / "page.json", parts)
    assert report.load(tmp_path / "page.json") == parts


def test_nothing_is_kept_at_first(tmp_path):
    assert report.load(tmp_path / "page.json") == {}


def test_a_page_says_of_each_part_when_and_where_it_was_measured_and_what_is_missing():
    parts = {
        "second": measured(line(0.5, least_median=1.0), commit="bbb", machine="another machine"),
        "first": measured(line(1.5, least_median=1.0)),
    }
    page = page_of(section("first"), section("second"), section("third"))
    text = report.to_markdown(page, parts)
    assert text.startswith("# Of rings\n\nWritten by `python -m x --write`; do not edit.")
    first, second, third = (text.index(f"## {name}") for name in ("first", "second", "third"))
    assert first < text.index("commit aaa") < second < text.index("commit bbb") < third
    assert "on another machine; load" in text[second:third]
    assert "Parts were measured on different machines" in text[:first]
    assert "Not measured yet." in text[third:]
    assert "A note." in text
    assert "Targets reached: 1 of 1." in text[first:second]
    assert "Targets reached: 0 of 1." in text[second:third]


def test_lines_of_one_event_stand_together_whatever_part_they_are_of():
    def joins(lines):
        return [over("a ratio", *lines[::2], most_median=1.0)]

    parts = {
        "ours": measured(line(1.0), line(5.0, event="a kill")),
        "peers": measured(line(2.0, side="a peer"), is_quick=True),
    }
    shown = section("ours", "peers", more_lines=joins)
    events = [(line.event, line.side) for line in shown.lines(parts)]
    assert events == [
        ("a join", "ours"),
        ("a join", "a peer"),
        ("a kill", "ours"),
        ("a ratio", "ours / a peer"),
    ]
    text = report.to_markdown(page_of(shown), parts)
    assert "- `ours`: Measured 2026" in text
    assert "different machines" not in text
    assert "- `peers`: **A quick run: too short to quote.** Measured 2026" in text


def test_a_part_that_fails_is_a_line_and_the_others_go_on(tmp_path, monkeypatch):
    def fail(run):
        raise SideFailed("no ring")

    monkeypatch.setattr(report, "look_around", lambda: FIRST)
    parts = {"bad": fail, "good": lambda run: Results(lines=[line(1.0)])}
    page = page_of(Section(title="All", method="", parts=parts))
    file = tmp_path / "docs" / "page.md"
    args = report.parser_of(page).parse_args(["--write", str(file)])
    assert report.measure(page, args, report.Run) == 1
    assert (
        "| bad | edl_horovod | not measured |  | max 0.000 s | NO | no ring |" in file.read_text()
    )

    args = report.parser_of(page).parse_args(["--quick", "--only", "good", "--write", str(file)])
    assert report.measure(page, args, lambda folder: report.Run(folder, is_quick=True)) == 0
    text = file.read_text()
    assert "no ring" in text
    assert "- `good`: **A quick run" in text
