"""The benchmarks' report, for a terminal and as Markdown, with where and when it was measured."""

import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.table import Table

from benchmarks.common import FULL, ROOT, Comparison, Settings

__all__ = ["Surroundings", "length_of", "look_around", "to_markdown", "to_table"]

LIBRARIES = ("tensorflow-cpu", "keras", "horovod", "numpy", "cramjam")
HEADERS = ("What", "Target", "Median", "Min to max", "Reached", "Behind it (medians)")
MEASURED = "Measured"
SHORT = "**A {} run: too short to quote.**"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where and when the numbers were measured."""

    cpu: str
    num_cores: int
    memory_bytes: int
    load: float
    """Processes that wanted a core in the minute before the start; of others, if above 0.3."""
    commit: str
    date: str
    versions: tuple[tuple[str, str], ...]

    @property
    def machine(self) -> str:
        """Processor, cores and memory, for people."""
        return f"{self.cpu}, {self.num_cores} cores, {self.memory_bytes / 2**30:.0f} GiB"


def look_around() -> Surroundings:
    """Read the machine, the commit and the versions; call it before the first measurement."""
    return Surroundings(
        cpu=_cpu(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        load=os.getloadavg()[0],
        commit=_commit(),
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        versions=(
            ("Python", platform.python_version()),
            *((name, version(name)) for name in LIBRARIES),
        ),
    )


def to_table(comparisons: list[Comparison]) -> Table:
    """The lines for a terminal.

    Args:
        comparisons: In the order of the report.
    """
    table = Table()
    for header in HEADERS:
        table.add_column(header, overflow="fold")
    for comparison in comparisons:
        table.add_row(*_cells(comparison))
    return table


def to_markdown(
    comparisons: list[Comparison],
    surroundings: Surroundings,
    settings: Settings,
    former: str = "",
) -> str:
    """The whole of `docs/benchmarks.md`.

    Args:
        comparisons: In the order of the report.
        surroundings: Where and when.
        settings: How long; anything but the full run is marked as such.
        former: The page as it is; its lines stay where they are not measured anew.
    """
    measured = f"{surroundings.date.partition(' ')[0]}, {surroundings.commit[:8]}"
    fresh = {comparison.name: _row((*_cells(comparison), measured)) for comparison in comparisons}
    rows = _merge(_rows(former), fresh)
    lines = ["# Benchmarks", "", "Written by `python -m benchmarks --write`; do not edit.", ""]
    if settings.name != FULL.name:
        lines += [SHORT.format(settings.name), ""]
    versions = ", ".join(f"{name} {number}" for name, number in surroundings.versions)
    lines += [
        f"- Machine: {surroundings.machine}",
        f"- Latest run: {surroundings.date}, commit {surroundings.commit}; "
        f"load before the start: {surroundings.load:.2f}",
        f"- Versions: {versions}",
        f"- {settings.repetitions} repetitions, the sides in turn; global batch "
        f"{settings.batch_size}, {settings.timed_steps} timed steps after "
        f"{settings.warmup_steps}; {settings.num_records} records of 784 floats and a label",
        "",
        _row((*HEADERS, MEASURED)),
        _row(["---"] * (len(HEADERS) + 1)),
        *rows.values(),
        "",
        "A ratio is our records per second over the other side's in the same repetition. The "
        "median is what is held against the target; a line without a target is for information.",
        "",
    ]
    return "\n".join(lines)


def length_of(page: str) -> str:
    """Name of the settings that a page was measured with.

    Args:
        page: As `to_markdown` wrote it.
    """
    mark = re.search(re.escape(SHORT).replace(r"\{\}", r"(\w+)"), page)
    return mark[1] if mark else FULL.name


def _cells(comparison: Comparison) -> tuple[str, ...]:
    def shown(value: float) -> str:
        if comparison.is_seconds:
            return f"{value:.3f} s"
        return f"{100 * value:.2f} %" if comparison.is_share else f"{value:.2f}"

    target, reached = "", ""
    if comparison.target is not None:
        bound = "at most" if comparison.is_share or comparison.is_seconds else "at least"
        target = f"{bound} {shown(comparison.target)}"
        reached = "yes" if comparison.is_reached else "NO"
    spread = f"{shown(min(comparison.values))} to {shown(max(comparison.values))}"
    return (comparison.name, target, shown(comparison.median), spread, reached, comparison.detail)


def _rows(page: str) -> dict[str, str]:
    """The lines of a page's table, by the names in their first cells."""
    _, _, table = page.partition(_row((*HEADERS, MEASURED)) + "\n")
    lines = [line for line in table.splitlines()[1:] if line.startswith("|")]
    return {line.split("|")[1].strip(): line for line in lines}


def _merge(former: dict[str, str], fresh: dict[str, str]) -> dict[str, str]:
    """All lines, in the order of the former ones; a new line follows the one before it."""
    names = list(former)
    for place, name in enumerate(fresh):
        if name not in former:
            before = list(fresh)[place - 1] if place else None
            names.insert(names.index(before) + 1 if before else len(names), name)
    rows = former | fresh
    return {name: rows[name] for name in names}


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    is_changed = git("status", "--porcelain", "--", "edl_horovod", "benchmarks")
    return git("rev-parse", "HEAD") + (" with uncommitted changes" if is_changed else "")
