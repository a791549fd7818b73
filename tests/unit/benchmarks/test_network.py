"""What the benchmarks over networks compute from steps, and what they keep."""

import pytest

from benchmarks.common import SideFailed
from benchmarks.elastic.stamps import Stamp
from benchmarks.elastic.table import Line
from benchmarks.network import page, results
from benchmarks.network.namespace import Rate, rate_in
from benchmarks.network.overlap import ratio_line
from benchmarks.network.phases import Phase, num_steps, step_seconds
from benchmarks.network.results import Failure, Found, Part
from tests.unit.benchmarks.test_elastic_table import HERE

FAST = Rate(name="fast", bits_per_second=0.0)
SLOW = Rate(name="slow", bits_per_second=1e9)


def stamps(*ends):
    return [Stamp(at=at, step=number, size=2) for number, at in enumerate(ends, start=1)]


def test_steps_of_each_rate_are_those_that_are_whole_in_its_span_but_the_first():
    # The rate changes at 4.5, in the step from 4 to 6.
    ends = stamps(1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 11.0, 13.0)
    phases = [Phase(rate=FAST, began=0.5), Phase(rate=SLOW, began=4.5)]
    assert step_seconds(ends, phases) == {"fast": 1.0, "slow": 2.0}


def test_a_rate_without_a_whole_step_is_told():
    phases = [Phase(rate=FAST, began=0.5), Phase(rate=SLOW, began=3.5)]
    with pytest.raises(SideFailed, match="slow"):
        step_seconds(stamps(1.0, 2.0, 3.0, 4.0, 6.0), phases)


def test_a_training_has_a_warmup_and_at_each_rate_two_steps_that_do_not_count():
    assert num_steps(8, 3, 2) == 3 + 2 * 10


def test_rate_is_read_from_what_tc_prints():
    shown = '[{"kind":"tbf","handle":"8001:","root":true,"options":{"rate":125000000,"lat":50000}}]'
    assert rate_in(shown) == 1e9


@pytest.mark.parametrize("shown", ["", "[]", '[{"kind":"noqueue","root":true,"options":{}}]'])
def test_there_is_no_rate_where_no_filter_is(shown):
    assert rate_in(shown) == 0.0


def test_a_ratio_takes_the_repetitions_in_which_both_sides_ran():
    ours = [{"slow": 1.0}, Failure(reason="out of memory"), {"slow": 2.0}]
    theirs = [{"slow": 1.5}, {"slow": 9.0}, {"slow": 2.0}]
    line = ratio_line("conv", "slow", ours, theirs, least=1.05)
    assert line.values == (1.5, 1.0)
    assert line.is_reached
    assert "out of memory" in line.detail


def test_a_ratio_without_a_side_is_not_reached_and_says_why():
    line = ratio_line("conv", "slow", [Failure(reason="no such setting")], [{"slow": 1.0}], least=1)
    assert line.is_reached is False
    assert line.detail == "no such setting"


def test_the_reason_of_a_failure_is_one_line_of_a_table():
    error = SideFailed(
        "x ended with 1. Its log ends:\nTraceback\n  a | b\nTypeError: no such setting\n"
    )
    assert results.reason_of(error) == "x ended with 1. Its log ends: TypeError: no such setting"


def part(*values, commit):
    line = Line(event="a step", side="ours", values=values, unit="r", least_median=1.0)
    return Part(
        found=Found(lines=[line], notes=["A note."], figures={"x": [1.0]}),
        commit=commit,
        date="today",
        load=0.2,
        seconds=60.0,
        is_quick=False,
    )


def test_parts_come_back_as_they_were_kept(tmp_path):
    parts = {"one": part(1.0, 2.0, commit="a"), "two": part(commit="b")}
    results.save(tmp_path / "kept.json", parts)
    assert results.load(tmp_path / "kept.json") == parts


def test_nothing_is_kept_at_first(tmp_path):
    assert results.load(tmp_path / "kept.json") == {}


def test_page_has_a_section_of_each_part_with_its_commit_and_says_what_is_missing():
    titles = {"one": ("First", "How."), "two": ("Second", "So."), "three": ("Third", "Else.")}
    parts = {"two": part(0.5, commit="bbb"), "one": part(1.5, commit="aaa")}
    written = page.to_markdown(parts, titles, HERE)
    first, second, third = (written.index(f"## {name}") for name in ("First", "Second", "Third"))
    assert first < written.index("aaa") < second < written.index("bbb") < third
    assert "Not measured yet." in written[third:]
    assert "A note." in written
    assert "Targets reached: 1 of 2" in written
