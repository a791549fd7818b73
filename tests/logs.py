"""What a test of several processes prints when it fails: one page."""

from collections.abc import Iterable
from pathlib import Path

from edl_horovod.job import events

NUM_LINES, MAX_CHARACTERS = 15, 300
"""Of each process, and of each line."""


def page(files: Iterable[Path], *heads: str, recorded: Iterable[events.Recorded] = ()) -> str:
    """The ends of some logs, below lines that say what ran and how it ended, and of the events."""
    parts = list(heads)
    for path in sorted(files):
        if lines := _end(path.read_text(errors="replace").splitlines()):
            parts += [f"--- {path.parent.name}/{path.name}", *lines]
    told = [events.line_of(each).strip() for each in recorded if each.event.kind != "account"]
    if lines := _end(told):
        parts += ["--- events", *lines]
    return "\n".join(parts)


def _end(lines: list[str]) -> list[str]:
    return [line[:MAX_CHARACTERS] for line in lines[-NUM_LINES:]]
