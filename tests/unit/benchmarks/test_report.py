"""The page of the benchmarks, measured as a whole or in part."""

from dataclasses import replace

from benchmarks.common import FULL, Comparison
from benchmarks.report import Surroundings, to_markdown

FIRST = Surroundings(
    cpu="a processor", num_cores=2, memory_bytes=24 * 2**30, load=0.1,
    commit="a" * 40, date="2026-01-02 03:04 UTC", versions=(("Python", "3.11"),),
)  # fmt: skip
SECOND = replace(FIRST, commit="b" * 40, date="2026-02-03 04:05 UTC")


def line(name, value):
    return Comparison(name=name, values=(value,), target=1.0)


def test_a_part_that_is_measured_anew_leaves_the_others():
    page = to_markdown([line("one", 0.5), line("two / three", 1.5)], FIRST, FULL)
    page = to_markdown([line("one", 2.0), line("four", 3.0)], SECOND, FULL, page)
    rows = [row for row in page.splitlines() if row.startswith("|")][2:]
    assert rows == [
        "| one | at least 1.00 | 2.00 | 2.00 to 2.00 | yes |  | 2026-02-03, bbbbbbbb |",
        "| two / three | at least 1.00 | 1.50 | 1.50 to 1.50 | yes |  | 2026-01-02, aaaaaaaa |",
        "| four | at least 1.00 | 3.00 | 3.00 to 3.00 | yes |  | 2026-02-03, bbbbbbbb |",
    ]
    assert page.count("Latest run: 2026-02-03 04:05 UTC, commit bbbb") == 1
    assert "aaaaaaaaa" not in page


def test_a_whole_run_forgets_the_former_one():
    page = to_markdown([line("one", 0.5)], FIRST, FULL)
    assert "| one | at least 1.00 | 0.50 | 0.50 to 0.50 | NO |  | 2026-01-02, aaaaaaaa |" in page
    assert "two" not in page
