"""`python -m benchmarks.against`: compare two checkouts."""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import against
from benchmarks.against import speed, weights
from benchmarks.against.checkout import Checkout
from benchmarks.run import ROOT


def main() -> int:
    """Compare; returns 1 where weights or metrics differ."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=against.__doc__.partition("\n")[0]
    )
    parser.add_argument("base", type=Path, help="root of a checkout, or a record of its weights")
    parser.add_argument("here", type=Path, nargs="?", default=ROOT, help="default: this checkout")
    parser.add_argument("--only", choices=("weights", "speed"))
    parser.add_argument("--rounds", type=int, default=3, help="of measuring the speed")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the weights of HERE")
    args = parser.parse_args()
    if args.base.is_file() and args.only != "weights":
        parser.error("a record has no speed; give a checkout, or --only weights")
    is_record = args.base.is_file()
    for root in (args.here,) if is_record else (args.here, args.base):
        if not (root / ".venv" / "bin" / "edl").is_file():
            parser.error(f"{root} has no .venv/bin/edl: run make setup in that checkout")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_same = True
    with tempfile.TemporaryDirectory(prefix="edl-against-") as folder:
        base = Checkout(args.base.resolve(), Path(folder) / "base")
        here = Checkout(args.here.resolve(), Path(folder) / "here")
        for side in (here,) if is_record else (base, here):
            side.make_data()
        if args.only != "speed":
            known = json.loads(args.base.read_text()) if is_record else weights.train_all(base)
            outcomes = weights.train_all(here)
            Console().print(weights.compare(known, outcomes))
            is_same = known == outcomes
            if args.record is not None:
                args.record.write_text(json.dumps(outcomes, indent=1) + "\n")
        if args.only != "weights":
            Console().print(speed.compare(*speed.measure(base, here, args.rounds)))
    return int(not is_same)


if __name__ == "__main__":
    sys.exit(main())
