"""The pages of the benchmarks: their lines and targets, when and where each part was measured.

A page is written by hand, but for the places between `<!-- measured: PARTS -->` and `<!-- end -->`.
A part can be measured by itself; the results of all are kept in a JSON file beside the page.
"""

import argparse
import dataclasses
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.run import MISSING, OURS, ROOT, Failure, Run, SideFailed, reason_of
from edl_horovod.errors import Interrupted
from edl_horovod.files.whole_file import write_json, write_text

LIBRARIES = ("tensorflow-cpu", "keras", "horovod", "numpy", "cramjam")
PLACE = re.compile("(<!-- measured:(.*?)-->)\n.*?(<!-- end -->)", re.DOTALL)
NEW_PLACE = "## {0}\n\n<!-- measured: {0} -->\n<!-- end -->\n"
HEADERS = ("Event", "Side", "Min / median / max", "Of", "To reach", "Reached", "Behind it")
UNITS = {
    "s": "{:.3f} s",
    "%": "{:.2f} %",
    "x": "{:.4f}",
    "r": "{:.2f}",
    "n": "{:.0f}",
    "M": "{:.0f} MiB",
    "G": "{:.2f} Gbit/s",
}


@dataclass(frozen=True)
class Line:
    """What a side did at an event, held against its targets."""

    event: str
    side: str
    values: Sequence[float] = ()
    """A value for each repetition; empty where it could not be measured."""
    _: KW_ONLY
    unit: str = "s"
    """`s` seconds, `%` percent, `x` a small ratio, `r` a ratio near 1, `n` a number, `M` mebibytes,
    `G` gigabits a second."""
    most_median: float | None = None
    """The highest median that reaches the target; None where there is no such target."""
    most: float | None = None
    """The same for the highest value."""
    least_median: float | None = None
    """The lowest median that reaches the target."""
    detail: str = ""
    """More for people: figures behind the values, or why there are none."""

    @property
    def median(self) -> float:
        """The median of the values; there must be some."""
        return statistics.median(self.values)

    @property
    def is_reached(self) -> bool | None:
        """Whether all targets are reached; None without targets. Not measured is not reached."""
        targets = (self.most_median, self.most, self.least_median)
        if all(target is None for target in targets):
            return None
        return bool(self.values) and (
            (self.most_median is None or self.median <= self.most_median)
            and (self.most is None or max(self.values) <= self.most)
            and (self.least_median is None or self.median >= self.least_median)
        )

    def cells(self) -> tuple[str, ...]:
        """The line as a row below `HEADERS`."""
        shown = UNITS[self.unit].format
        bounds = {"at least": self.least_median, "median": self.most_median, "max": self.most}
        targets = [f"{name} {shown(bound)}" for name, bound in bounds.items() if bound is not None]
        spread = "not measured"
        if self.values:
            figures = (min(self.values), self.median, max(self.values))
            spread = " / ".join(shown(figure) for figure in figures)
        number = str(len(self.values)) if self.values else ""
        reached = {None: "", True: "yes", False: "NO"}[self.is_reached]
        return (self.event, self.side, spread, number, "; ".join(targets), reached, self.detail)


def ratio(
    event: str,
    ours: Sequence[float | Failure],
    peers: Sequence[float | Failure],
    side: str,
    *,
    shown: str = "{:,.0f} / {:,.0f} records/s",
    is_inverse: bool = False,
    **targets: Any,
) -> Line:
    """Ours over the peer's, a ratio for each repetition in which both ran.

    Args:
        event: What both did.
        ours: The figures of our side.
        peers: The figures of the other side.
        side: The name of the other side, or of both with a slash between them.
        shown: The format of both medians.
        is_inverse: Whether it is the peer's over ours: of seconds, where the ratio is of speeds.
        **targets: Targets and detail of the line.
    """
    results = [*zip(ours, peers, strict=True)]
    pairs = [pair for pair in results if not any(isinstance(side, Failure) for side in pair)]
    reasons = [side.reason for side in (*ours, *peers) if isinstance(side, Failure)]
    medians = [statistics.median(figures) for figures in zip(*pairs, strict=True)]
    details = [shown.format(*medians)] if pairs else []
    details += [targets.pop("detail")] if "detail" in targets else []
    return Line(
        event,
        side if "/" in side else f"{OURS} / {side}",
        tuple(peer / mine if is_inverse else mine / peer for mine, peer in pairs),
        unit="r",
        detail="; ".join([*details, *dict.fromkeys(reasons)]),
        **targets,
    )


def over(event: str, ours: Line, peers: Line, *, most_median: float) -> Line:
    """Our median over the other side's of the same event."""
    side, options = f"{ours.side} / {peers.side}", {"unit": "x", "most_median": most_median}
    if not ours.values or not peers.values:
        return Line(event, side, detail="a side is missing", **options)
    detail = f"1 : {peers.median / max(ours.median, 1e-9):.0f}"
    return Line(event, side, (ours.median / peers.median,), detail=detail, **options)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    table = (headers, ["---"] * len(headers), *rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def look_around() -> dict[str, Any]:
    """Read the machine, the commit and the versions; call it before the first measurement."""
    versions = {"Python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "machine": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, {gibibytes:.0f} GiB",
        "commit": _commit(),
        "date": _date(),
        "load": os.getloadavg()[0],
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }


def _date() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", "-C", str(ROOT), *arguments], text=True).strip()

    is_changed = git("status", "--porcelain", "--", "edl_horovod", "benchmarks")
    return git("rev-parse", "HEAD") + (" with uncommitted changes" if is_changed else "")


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a part measured."""

    lines: Sequence[Line] = ()
    notes: Sequence[str] = ()
    """Markdown paragraphs and tables below the lines."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The figures behind the lines, kept beside the page."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a part measured, where and when."""

    results: Results
    machine: str
    commit: str
    date: str
    versions: str = ""
    load: float | None = None
    """Processes that wanted a core in the minute before the start; of others, if above 0.3."""
    seconds: float | None = None
    """How long it took."""
    is_quick: bool = False

    def __str__(self) -> str:
        length = "" if self.seconds is None else f", in {self.seconds / 60:.1f} minutes"
        load = "" if self.load is None else f"; load before the start: {self.load:.2f}"
        return (
            f"{'**A quick run: too short to quote.** ' if self.is_quick else ''}"
            f"Measured {self.date} on commit {self.commit}{length}, on {self.machine}{load}"
            f"{'; ' if self.versions else ''}{self.versions}."
        )


Part = Callable[[Any], Results | Sequence[Line]]
"""Measures something in a run."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of benchmarks."""

    module: str
    """Run by `python -m`, it writes the page."""
    description: str
    parts: Mapping[str, Part]
    """What measures each part, by the name on the command line."""
    more_lines: Callable[[Sequence[Line]], Sequence[Line]] = lambda lines: ()
    """Computes lines from those of all parts of a place."""

    def lines(self, names: Sequence[str], measured: Mapping[str, Measured]) -> list[Line]:
        """The lines of those parts that were measured, those of one event together."""
        lines = [
            line for name in names if name in measured for line in measured[name].results.lines
        ]
        lines += self.more_lines(lines)
        events = [line.event for line in lines]
        return sorted(lines, key=lambda line: events.index(line.event))


def to_markdown(page: Page, text: str, measured: Mapping[str, Measured]) -> str:
    """The text of a page with the results of the parts that its places name.

    A place that names none says where parts were measured on different machines.
    """

    def fill(place: re.Match[str]) -> str:
        paragraphs = filter(None, _paragraphs(page, place[2].split(), measured))
        return "\n\n".join([place[1], *paragraphs, place[3]])

    return PLACE.sub(fill, text)


def _paragraphs(
    page: Page, names: Sequence[str], measured: Mapping[str, Measured]
) -> Iterator[str]:
    if not names and len({part.machine for part in measured.values()}) > 1:
        yield "**Parts were measured on different machines: compare no figures of two.**"
    states = [str(measured.get(name, "Not measured yet.")) for name in names]
    items = (f"- `{name}`: {state}" for name, state in zip(names, states, strict=True))
    yield "\n".join(states if len(names) == 1 else items)
    if lines := page.lines(names, measured):
        reached = [line.is_reached for line in lines if line.is_reached is not None]
        yield f"Targets reached: {sum(reached)} of {len(reached)}." if reached else ""
        yield markdown_table(HEADERS, [line.cells() for line in lines])
    for name in names:
        yield from measured[name].results.notes if name in measured else ()


def load(path: Path) -> dict[str, Measured]:
    """The parts that a file keeps, by name; none where there is no file yet."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    for values in stored.values():
        results = values["results"]
        results["lines"] = [
            Line(**{**line, "values": tuple(line["values"])}) for line in results["lines"]
        ]
        values["results"] = Results(**results)
    return {name: Measured(**values) for name, values in stored.items()}


def save(path: Path, measured: Mapping[str, Measured]) -> None:
    """Write the parts."""
    write_json(path, {name: dataclasses.asdict(part) for name, part in measured.items()})


def parser_of(page: Page, **options: Any) -> argparse.ArgumentParser:
    """The arguments of a page's command."""
    program = f"python -m {page.module}"
    parser = argparse.ArgumentParser(prog=program, description=page.description, **options)
    parser.add_argument("--quick", action="store_true", help="a short smoke run")
    parser.add_argument("--only", nargs="+", choices=page.parts, default=list(page.parts))
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write into the page, and results beside it; what --only leaves out stays as it is",
    )
    return parser


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Take the interpreter of the peers with PyTorch, and the folder of Horovod as released."""
    for name, metavar, text in (
        ("--torch-python", "FILE", "it has torch"),
        ("--released-horovod", "DIR", "without patch"),
    ):
        # Not resolved: the interpreter of an environment is a link to the machine's.
        options = {"type": lambda path: Path(path).absolute(), "default": MISSING}
        parser.add_argument(name, metavar=metavar, help=text, **options)


def main(page: Page) -> int:
    """The command of a page with no further arguments."""
    args = parser_of(page).parse_args()
    return measure(page, args, lambda folder: Run(folder, is_quick=args.quick))


def measure(page: Page, args: argparse.Namespace, run_of: Callable[[Path], Run]) -> int:
    """Measure what was asked for; returns 1 where a target is missed."""
    # SIGTERM ends the run as Ctrl-C does: the processes end, the temporary folder goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    store: Path | None = None
    if args.write is not None:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        store = args.write.with_suffix(".json")
        if not args.write.exists():
            places = [NEW_PLACE.format(name) for name in page.parts]
            write_text(args.write, "\n".join([f"# {page.description}\n", *places]))
    earlier = load(store) if store is not None else {}
    fresh: dict[str, Measured] = {}
    surroundings = look_around()
    try:
        with tempfile.TemporaryDirectory(prefix="edl-benchmarks-") as folder:
            run = run_of(Path(folder))
            for name in args.only:
                fresh[name] = _measure(name, page.parts[name], run, surroundings)
                if store is not None:
                    measured = earlier | fresh
                    save(store, measured)
                    text = to_markdown(page, args.write.read_text(), measured)
                    write_text(args.write, text)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return Interrupted.exit_code
    lines = page.lines(args.only, fresh)
    table = Table(*(Column(header, overflow="fold") for header in HEADERS))
    for line in lines:
        table.add_row(*line.cells())
    Console().print(table)
    for part in fresh.values():
        print("\n\n".join(part.results.notes))
    return int(any(line.is_reached is False for line in lines))


def _measure(name: str, part: Part, run: Run, surroundings: dict[str, Any]) -> Measured:
    print(f"{time.strftime('%H:%M:%S')} {name} ...", file=sys.stderr)
    surroundings, began = {**surroundings, "date": _date()}, time.monotonic()
    try:
        results = part(run)
        results = results if isinstance(results, Results) else Results(lines=results)
    except SideFailed as error:
        # The other parts are still worth their minutes.
        print(f"error: {error}", file=sys.stderr)
        results = Results(lines=[Line(name, OURS, most=0.0, detail=reason_of(error))])
    for line in results.lines:
        print("  " + " | ".join(line.cells()), file=sys.stderr)
    seconds = time.monotonic() - began
    return Measured(results=results, seconds=seconds, is_quick=run.is_quick, **surroundings)
