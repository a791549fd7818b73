"""The page: a section of each part, with the commit and the date of its measurement."""

from collections.abc import Mapping, Sequence

from benchmarks.elastic.table import Line, rows_of
from benchmarks.network.parts import Part
from benchmarks.network.results import Measured
from benchmarks.report import Surroundings

__all__ = ["to_markdown"]

INTRODUCTION = """\
Written by `make bench-network`; do not edit. `make bench-network PART=overlap` measures one part
and leaves the others as they are; each says on which commit and machine it was measured."""


def to_markdown(
    measured: Mapping[str, Measured], parts: Mapping[str, Part], surroundings: Surroundings
) -> str:
    """The whole of the page.

    Args:
        measured: By the part's name; those that were never measured are said to be missing.
        parts: In order.
        surroundings: The versions.
    """
    versions = ", ".join(f"{name} {number}" for name, number in surroundings.versions)
    lines = [line for name in parts if name in measured for line in measured[name].found.lines]
    text = [
        "# Benchmarks over networks",
        "",
        INTRODUCTION,
        "",
        f"- Versions: {versions}",
        f"- Targets reached: {_reached(lines)}",
        "",
    ]
    for name, part in parts.items():
        text += [f"## {part.title}", "", part.method, ""]
        text += _section(measured[name]) if name in measured else ["Not measured yet.", ""]
    return "\n".join(text)


def _section(part: Measured) -> list[str]:
    text = [
        f"Measured {part.date} on commit {part.commit}, in {part.seconds / 60:.1f} minutes, on "
        f"{part.machine}; load before the start: {part.load:.2f}.",
        "",
    ]
    if part.is_quick:
        text = ["**A quick run: too short to quote.**", "", *text]
    if part.found.lines:
        text += [*rows_of(part.found.lines), ""]
    for note in part.found.notes:
        text += [note, ""]
    return text


def _reached(lines: Sequence[Line]) -> str:
    reached = [line.is_reached for line in lines if line.is_reached is not None]
    return f"{sum(reached)} of {len(reached)}"
