"""The page of the benchmarks, measured as a whole or in part."""

import sys
from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from benchmarks.common import FULL, QUICK, Comparison
from benchmarks.report import Surroundings, length_of, to_markdown

FIRST = Surroundings(
    cpu="a processor",
    num_cores=2,
    memory_bytes=24 * 2**30,
    load=0.1,
    commit="a" * 40,
    date="2026-01-02 03:04 UTC",
    versions=(("Python", "3.11"),),
)
SECOND = replace(FIRST, commit="b" * 40, date="2026-02-03 04:05 UTC")


def line(name, value):
    return Comparison(name=name, values=(value,), target=1.0)


def test_a_part_that_is_measured_anew_leaves_the_others_and_keeps_its_new_lines_together():
    page = to_markdown([line("one", 0.5), line("two / three", 1.5)], FIRST, FULL)
    page = to_markdown([line("one", 2.0), line("four", 3.0)], SECOND, FULL, page)
    rows = [row for row in page.splitlines() if row.startswith("|")][2:]
    assert rows == [
        "| one | at least 1.00 | 2.00 | 2.00 to 2.00 | yes |  | 2026-02-03, bbbbbbbb |",
        "| four | at least 1.00 | 3.00 | 3.00 to 3.00 | yes |  | 2026-02-03, bbbbbbbb |",
        "| two / three | at least 1.00 | 1.50 | 1.50 to 1.50 | yes |  | 2026-01-02, aaaaaaaa |",
    ]
    assert page.count("Latest run: 2026-02-03 04:05 UTC, commit bbbb") == 1
    assert "aaaaaaaaa" not in page


def test_a_whole_run_forgets_the_former_one():
    page = to_markdown([line("one", 0.5)], FIRST, FULL)
    assert "| one | at least 1.00 | 0.50 | 0.50 to 0.50 | NO |  | 2026-01-02, aaaaaaaa |" in page
    assert "two" not in page


@pytest.mark.parametrize("settings", [FULL, QUICK])
def test_a_page_says_how_long_its_run_was(settings):
    assert length_of(to_markdown([line("one", 0.5)], FIRST, settings)) == settings.name


def test_a_short_run_is_not_mixed_with_a_long_one(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(to_markdown([line("one", 0.5)], FIRST, FULL))
    command = ["benchmarks", "--quick", "--only", "step", "--write", str(page)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    assert "page.md is of a full run" in capsys.readouterr().err
    assert length_of(page.read_text()) == "full"
