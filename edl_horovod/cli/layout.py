"""How the verbs that look at jobs lay out what they print."""

from collections.abc import Mapping, Sequence

__all__ = ["fact_lines", "table"]


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """The lines; a fact without a value is left out."""
    return [f"{name:10} {value}" for name, value in facts.items() if value]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table; the last column may be of any length.

    Args:
        header: Names of the columns.
        rows: What stands in them.
    """
    texts = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(header) - 1)]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in texts]
