"""`python -m benchmarks.network`: training over networks of several rates; needs root.

Everything runs in a network namespace of its own, whose loopback `tc` holds to a rate: the
machine's network stays as it is, and the namespace ends with this process. Parts can be measured
one after another: what they find is kept in a JSON file beside the page, which is written anew from
all of it.
"""

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.common import SideFailed
from benchmarks.elastic.settings import OURS
from benchmarks.elastic.table import Line, to_table
from benchmarks.network import namespace, page, results
from benchmarks.network.parts import PARTS
from benchmarks.network.results import Found, Measured
from benchmarks.network.settings import FULL, MODELS, QUICK, RATES, Run
from benchmarks.report import Surroundings, look_around
from edl_horovod.errors import Interrupted
from edl_horovod.files.whole_file import write_text

MODULE = "benchmarks.network"
EXAMPLES = """\
examples:
  python -m benchmarks.network --only overlap --models conv --rates 1 --repetitions 2
  make bench-network PART=overlap QUICK=1
"""


def main() -> int:
    """Measure what was asked for; returns 1 where a target is missed."""
    args = _arguments()
    if reason := namespace.what_is_missing():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    namespace.enter(MODULE, sys.argv[1:])
    # SIGTERM ends the run as Ctrl-C does: the sides end, the temporary folder goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    surroundings = look_around()
    if args.write is not None:
        args.write.parent.mkdir(parents=True, exist_ok=True)
    kept = args.write.with_suffix(".json") if args.write is not None else None
    parts = results.load(kept) if kept is not None else {}
    lines: list[Line] = []
    try:
        with tempfile.TemporaryDirectory(prefix="edl-benchmarks-") as folder:
            run = _run(Path(folder), args)
            for name in args.only:
                part = _measure(name, run, surroundings, is_quick=args.quick)
                lines += part.found.lines
                parts[name] = part
                if kept is not None:
                    results.save(kept, parts)
                    write_text(args.write, page.to_markdown(parts, PARTS, surroundings))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return Interrupted.exit_code
    Console().print(to_table(lines))
    return int(any(line.is_reached is False for line in lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a short smoke run")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        choices=[each.bits_per_second / 1e9 for each in RATES],
        default=[each.bits_per_second / 1e9 for each in RATES],
        help="Gbit/s; 0 is no limit",
    )
    parser.add_argument("--repetitions", type=int, help="of each side; default: 3, 1 with --quick")
    parser.add_argument(
        "--torch-python", type=Path, default=Path("none"), metavar="FILE", help="it has torch"
    )
    parser.add_argument(
        "--released-horovod", type=Path, default=Path("none"), metavar="DIR", help="without patch"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the page, and its JSON beside it"
    )
    return parser.parse_args()


def _run(folder: Path, args: argparse.Namespace) -> Run:
    settings = QUICK if args.quick else FULL
    if args.repetitions is not None:
        settings = dataclasses.replace(settings, repetitions=args.repetitions)
    return Run(
        folder,
        settings,
        models=tuple(args.models),
        rates=tuple(each for each in RATES if each.bits_per_second / 1e9 in args.rates),
        # Not resolved: the interpreter of an environment is a link to the machine's.
        torch_python=Path(os.path.abspath(args.torch_python)),
        released_horovod=Path(os.path.abspath(args.released_horovod)),
    )


def _measure(name: str, run: Run, surroundings: Surroundings, *, is_quick: bool) -> Measured:
    print(f"{time.strftime('%H:%M:%S')} {name} ...", file=sys.stderr)
    began = time.monotonic()
    try:
        found = PARTS[name].measure(run)
    except SideFailed as error:
        # The other parts are still worth their minutes.
        print(f"error: {error}", file=sys.stderr)
        line = Line(event=name, side=OURS, most=0.0, detail=results.reason_of(error))
        found = Found(lines=[line])
    return Measured(
        found=found,
        machine=surroundings.machine,
        commit=surroundings.commit,
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        load=surroundings.load,
        seconds=time.monotonic() - began,
        is_quick=is_quick,
    )


if __name__ == "__main__":
    sys.exit(main())
