"""`python -m benchmarks`: run all benchmarks and show one table."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import (
    bench_checkpoint,
    bench_elastic_cost,
    bench_formats,
    bench_input,
    bench_predict,
    bench_prepare,
    bench_sql,
    bench_start,
    bench_step,
    bench_torch_step,
)
from benchmarks.common import FULL, QUICK, Comparison, SideFailed, Workspace
from benchmarks.report import length_of, look_around, to_markdown, to_table
from edl_horovod.errors import Interrupted
from edl_horovod.files.whole_file import write_text

BENCHMARKS: dict[str, Callable[[Workspace], list[Comparison]]] = {
    "input": bench_input.measure,
    "formats": bench_formats.measure,
    "step": bench_step.measure,
    "torch_step": bench_torch_step.measure,
    "predict": bench_predict.measure,
    "elastic_cost": bench_elastic_cost.measure,
    "prepare": bench_prepare.measure,
    "sql": bench_sql.measure,
    "start": bench_start.measure,
    "checkpoint": bench_checkpoint.measure,
}


def main() -> int:
    """Run what was asked for; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short smoke run")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the table as Markdown; what --only leaves out stays as it is there",
    )
    args = parser.parse_args()
    # SIGTERM ends the run as Ctrl-C does: the side ends, the temporary folder goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = QUICK if args.quick else FULL
    is_partial = set(args.only) != set(BENCHMARKS) and args.write is not None
    former = args.write.read_text(encoding="utf-8") if is_partial and args.write.exists() else ""
    if former and length_of(former) != settings.name:
        parser.error(
            f"{args.write} is of a {length_of(former)} run, and --only keeps the lines that it "
            f"leaves out; those of a {settings.name} run do not fit to them. Write another file, "
            "or measure all"
        )
    surroundings = look_around()
    try:
        with tempfile.TemporaryDirectory(prefix="edl-benchmarks-") as folder:
            space = Workspace(Path(folder), settings)
            space.run_side("benchmarks.records", f"--num-records={settings.num_records}")
            found = [line for name in args.only for line in BENCHMARKS[name](space)]
    except SideFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return Interrupted.exit_code
    Console().print(to_table(found))
    if args.write is not None:
        write_text(args.write, to_markdown(found, surroundings, settings, former))
    return int(any(comparison.is_reached is False for comparison in found))


if __name__ == "__main__":
    sys.exit(main())
