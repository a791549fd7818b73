"""`python -m benchmarks.elastic`: all kinds of events, one table, two pictures."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import common
from benchmarks.common import SideFailed, Workspace
from benchmarks.elastic import (
    charts,
    forming_events,
    forming_rings,
    goodput,
    horovod_events,
    many_ranks,
    ring_events,
    step_cost,
    torch_events,
    two_jobs,
    warm_horovodrun,
)
from benchmarks.elastic.settings import FULL, OURS, PLAIN, QUICK, Run
from benchmarks.elastic.table import Line, Page, over, to_markdown, to_table
from benchmarks.report import look_around
from edl_horovod.errors import Interrupted
from edl_horovod.files.whole_file import write_text

JOIN_RATIO = 1 / 30
PICTURES = {
    "goodput": "A job through a kill, a removal and a join in turn, one every 10 s",
    "two_jobs": "Two jobs that each want two of three slots: gang, and elastic",
}
PAGE = Page(
    title="Benchmarks of elasticity",
    command="python -m benchmarks.elastic --write",
    method="""\
How it was measured:

- All sides train the convolutional model of 0.7 M parameters (`benchmarks/models/cnn.py`) with a
  global batch of 128 and one thread a rank. Every rank writes down the end of every step. A stall
  is the longest gap between two steps around the event, on the rank that stays, less its median
  step.
- Ours is the real job: `edl_horovod.supervisor`, its coordinator, its workers, records from files.
  It is driven by its hosts file and by signals. Slots that fail again start again at once
  (`elastic.restart_backoff_seconds=0.01`); all other settings are the defaults.
- Plain Horovod is a loop as its documents teach it, on Keras 3, under `horovodrun` with a discovery
  script, on the Horovod that we build; it commits every 10 steps. Each newcomer has a host name of
  its own, because Horovod does not use a host again that failed.
- TorchElastic is two `torchrun` agents with one worker each, DDP on Gloo, a checkpoint every 50
  steps, and `last_call_timeout=1` instead of 30 s. It starts all workers anew at each event: the
  stall is the gap between two steps of the agent that stays. `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`
  is set, because without it a second agent could not join the first (torch 2.13).
- Plain Horovod trains on one batch in memory, so that no input pipeline is part of its stall;
  TorchElastic's workers load 6 MB of arrays when they start.
- [The benchmarks over networks](benchmarks-network.md) have the same events in PyTorch.""",
)


class _Report:
    """Lines and pictures, as they come."""

    def __init__(self, run: Run, folder: Path | None) -> None:
        self.lines: list[Line] = []
        self.pictures: list[tuple[str, str]] = []
        self._run = run
        self._folder = folder

    def add(self, name: str) -> None:
        """Measure one part."""
        print(f"{time.strftime('%H:%M:%S')} {name} ...", file=sys.stderr)
        if name == "goodput":
            lines, rows = goodput.measure(self._run)
            self._draw(name, lambda path: charts.draw_goodput(path, rows))
        elif name == "two_jobs":
            lines, ways = two_jobs.measure(self._run)
            self._draw(name, lambda path: charts.draw_two_jobs(path, ways))
        else:
            lines = PARTS[name](self._run)
        self.lines += lines
        for line in lines:
            print(f"  {line.side}: {line.event}: {line.values} {line.detail}", file=sys.stderr)

    def _draw(self, name: str, draw: Callable[[Path], None]) -> None:
        if self._folder is not None:
            file_name = f"benchmarks-elastic-{name.replace('_', '-')}.svg"
            draw(self._folder / file_name)
            self.pictures.append((PICTURES[name], file_name))

    def sorted_lines(self) -> list[Line]:
        """The lines, those of one event together, in the order in which the events came."""
        events = [line.event for line in self.lines]
        lines = sorted(self.lines, key=lambda line: events.index(line.event))
        joins = {line.side: line for line in lines if line.event.startswith("a worker joins")}
        if OURS in joins and PLAIN in joins:
            event = "a worker joins: ours over plain Horovod's"
            ratio = over(event, joins[OURS], joins[PLAIN], most_median=JOIN_RATIO)
            lines.insert(lines.index(joins[OURS]) + len(joins), ratio)
        return lines


PARTS: dict[str, Callable[[Run], list[Line]]] = {
    "ring_events": ring_events.measure,
    "horovod_events": horovod_events.measure,
    "torch_events": lambda run: torch_events.measure(run.in_torch()),
    "forming_events": forming_events.measure,
    "warm_horovodrun": warm_horovodrun.measure,
    "forming_rings": forming_rings.measure,
    "many_ranks": many_ranks.measure,
    "step_cost": step_cost.measure,
}
NAMES = (*PARTS, "goodput", "two_jobs")


def main() -> int:
    """Run what was asked for; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short smoke run")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page and pictures")
    parser.add_argument(
        "--torch-python", type=Path, default=Path("none"), metavar="FILE", help="it has torch"
    )
    args = parser.parse_args()
    # SIGTERM ends the run as Ctrl-C does: the processes end, the temporary folder goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    surroundings, began = look_around(), time.monotonic()
    if args.write is not None:
        args.write.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="edl-benchmarks-") as name:
            report = _measure(args, Path(name))
    except SideFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return Interrupted.exit_code
    lines = report.sorted_lines()
    Console().print(to_table(lines))
    if args.write is not None:
        page = to_markdown(
            lines,
            surroundings,
            PAGE,
            is_quick=args.quick,
            seconds=time.monotonic() - began,
            pictures=report.pictures,
        )
        write_text(args.write, page)
    return int(any(line.is_reached is False for line in lines))


def _measure(args: argparse.Namespace, folder: Path) -> _Report:
    space = Workspace(folder, common.QUICK)
    space.run_side("benchmarks.records", f"--num-records={common.QUICK.num_records}")
    settings = QUICK if args.quick else FULL
    # Not resolved: the interpreter of an environment is a link to the machine's.
    torch_python = Path(os.path.abspath(args.torch_python))
    run = Run(folder, settings, data=space.data, torch_python=torch_python)
    report = _Report(run, args.write.parent if args.write is not None else None)
    for name in args.only:
        try:
            report.add(name)
        except SideFailed as error:
            # The others are still worth their minutes.
            print(f"error: {error}", file=sys.stderr)
            report.lines.append(Line(event=name, side=OURS, most=0.0, detail="this part failed"))
    return report


if __name__ == "__main__":
    sys.exit(main())
