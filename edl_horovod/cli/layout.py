"""How the verbs that look at jobs lay out what they print."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edl_horovod.supervisor.run import JobResult

__all__ = ["fact_lines", "print_result", "print_rows", "table"]


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """The lines; a fact without a value is left out."""
    return [f"{name:10} {value}" for name, value in facts.items() if value]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table; the last column may be of any length."""
    texts = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(header) - 1)]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in texts]


def print_result(result: "JobResult") -> None:
    """Print how a job that ran here ended."""
    rows = {name: f"{value:.6g}" for name, value in result.metrics.items()}
    rows |= {"output": result.output} if result.output else {}
    rows |= {"job_dir": result.job_dir, "steps": str(result.steps)}
    rows["seconds"] = f"{result.seconds:.1f}"
    print_rows(rows)


def print_rows(rows: Mapping[str, str]) -> None:
    """Print facts that other programs may read, a line each."""
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        print(f"{name + ':':<{width}}{value}")
