"""`python -m benchmarks.kube`: host discovery with many pods, the coordinator with many workers."""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.common import SideFailed
from benchmarks.elastic.settings import FULL as ELASTIC
from benchmarks.elastic.settings import Run
from benchmarks.elastic.table import Line, Page, to_markdown, to_table
from benchmarks.kube import coordinator_scale, discovery_scale
from benchmarks.kube.settings import FULL, QUICK
from benchmarks.report import look_around
from edl_horovod.errors import Interrupted
from edl_horovod.files.whole_file import write_text

PARTS = {"discovery": discovery_scale.measure, "coordinator": coordinator_scale.measure}
PAGE = Page(
    title="Benchmarks of the Kubernetes half",
    command="python -m benchmarks.kube --write",
    method="""\
How it was measured:

- Discovery is the program `edl_horovod.cluster.pod.discovery`, over HTTP, with the API server of
  `tests/kube`, which runs in the measuring process on the same machine. A pod is some 4 KB of JSON.
  The time begins before the pod's status is changed in the server and ends when the hosts file that
  shows it was read; a change's share of the server is in it.
- The coordinator is the program `edl_horovod.coordinator`. Its workers are sockets of one other
  process that speak the worker's protocol: they leave their ring at once when told and report every
  ring as formed, so neither a training step nor Horovod's rendezvous is in the time. It begins with
  the change and ends when the last worker has read its place in the new ring.""",
)


def main() -> int:
    """Run what was asked for; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kube", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short smoke run")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page")
    args = parser.parse_args()
    # SIGTERM ends the run as Ctrl-C does: the processes end, the temporary folder goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    surroundings, began = look_around(), time.monotonic()
    lines: list[Line] = []
    try:
        with tempfile.TemporaryDirectory(prefix="edl-benchmarks-") as name:
            run = Run(Path(name), ELASTIC, data=Path("none"), torch_python=Path("none"))
            for part in args.only:
                lines += PARTS[part](run, QUICK if args.quick else FULL)
    except SideFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return Interrupted.exit_code
    Console().print(to_table(lines))
    if args.write is not None:
        seconds = time.monotonic() - began
        text = to_markdown(lines, surroundings, PAGE, is_quick=args.quick, seconds=seconds)
        write_text(args.write, text)
    return int(any(line.is_reached is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
