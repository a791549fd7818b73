"""What the parts found, kept in a file, so that parts can be measured one after another."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common import SideFailed
from benchmarks.elastic.table import Line
from edl_horovod.files.whole_file import write_json

__all__ = ["Failure", "Found", "Measured", "guarded", "load", "save"]

SideT = TypeVar("SideT")
MAX_REASON = 300


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A side that gave no figures."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one part measured."""

    lines: list[Line]
    notes: list[str] = field(default_factory=list)
    """Markdown paragraphs and tables below the lines."""
    figures: dict[str, Any] = field(default_factory=dict)
    """For the parts that compute with them."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one part found, where and when."""

    found: Found
    machine: str
    commit: str
    date: str
    load: float
    seconds: float
    is_quick: bool


def guarded(side: Callable[[], SideT]) -> Callable[[], SideT | Failure]:
    """A side whose failure is a result, too: the others are still worth their minutes."""

    def run() -> SideT | Failure:
        try:
            return side()
        except SideFailed as error:
            return Failure(reason=reason_of(error))

    return run


def reason_of(error: Exception) -> str:
    """The failure in one line: what failed, and the last line that it printed."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return text.replace("|", "/")[:MAX_REASON]


def load(path: Path) -> dict[str, Measured]:
    """The parts of a file, by name; none where there is no file yet."""
    if not path.exists():
        return {}
    return {name: _part(values) for name, values in json.loads(path.read_text()).items()}


def save(path: Path, parts: Mapping[str, Measured]) -> None:
    """Write the parts."""
    write_json(path, {name: dataclasses.asdict(part) for name, part in parts.items()})


def _part(values: dict[str, Any]) -> Measured:
    found = dict(values["found"])
    lines = [Line(**{**line, "values": tuple(line["values"])}) for line in found.pop("lines")]
    return Measured(**{**values, "found": Found(lines=lines, **found)})
