"""`python -m benchmarks.network`: training over networks of several rates; needs root.

Everything runs in a network namespace of its own, whose loopback `tc` holds to a rate: the
machine's network stays as it is, and the namespace ends with this process.
"""

import argparse
import sys

from benchmarks.network import events, namespace, rounds, scaling, speed
from benchmarks.network.speed import MODELS, RATES, NetworkRun
from benchmarks.report import Page, add_peers, measure, parser_of

EXAMPLES = """\
examples:
  python -m benchmarks.network --only overlap --models conv --rates 1 --repetitions 2
  make bench-network PART=overlap QUICK=1
"""
PAGE = Page(
    module="benchmarks.network",
    description="Training over networks of several rates, with models large enough to feel them. "
    "`make bench-network PART=overlap` measures one part.",
    parts={
        "rate": namespace.measure,
        "overlap": speed.measure_keras,
        "torch": speed.measure_torch,
        "rounds": rounds.measure,
        "torch-memory": speed.measure_torch_memory,
        "torch-elastic": events.measure_torch,
        "buckets": speed.measure_buckets,
        "compression": speed.measure_compression,
        "memory": speed.measure_memory,
        "join": events.measure_joins,
        "index": events.measure_index,
        "elastic": events.measure_large,
        "scaling": scaling.measure,
    },
)


def main() -> int:
    """Measure what was asked for; returns 1 where a target is missed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = parser_of(PAGE, epilog=EXAMPLES, formatter_class=formatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    rates = {rate.bits_per_second / 1e9: rate for rate in RATES}
    options = {"nargs": "+", "type": float, "choices": rates, "default": list(rates)}
    parser.add_argument("--rates", help="Gbit/s; 0 is no limit", **options)
    parser.add_argument("--repetitions", type=int, help="of each side; default: 3, 1 with --quick")
    add_peers(parser)
    args = parser.parse_args()
    if reason := namespace.what_is_missing():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    namespace.enter(PAGE.module, sys.argv[1:])
    options = {
        "is_quick": args.quick,
        "models": tuple(args.models),
        "rates": tuple(rate for number, rate in rates.items() if number in args.rates),
        "repetitions": args.repetitions,
        "torch_python": args.torch_python,
        "released_horovod": args.released_horovod,
    }
    return measure(PAGE, args, lambda folder: NetworkRun(folder, **options))


if __name__ == "__main__":
    sys.exit(main())
