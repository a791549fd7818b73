"""`python -m benchmarks.network`: training over networks of several rates; needs root.

Everything runs in a network namespace of its own, whose loopback `tc` holds to a rate: the
machine's network stays as it is, and the namespace ends with this process.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.network import events, namespace, scaling, speed, timeline
from benchmarks.network.speed import MODELS, RATES, NetworkRun
from benchmarks.report import Page, Section, add_torch_python, measure, parser_of
from benchmarks.run import MISSING

EXAMPLES = """\
examples:
  python -m benchmarks.network --only overlap --models conv --rates 1 --repetitions 2
  make bench-network PART=overlap QUICK=1
"""
PAGE = Page(
    title="Benchmarks over networks",
    module="benchmarks.network",
    introduction="Training over networks of several rates, with models large enough to feel them. "
    "`make bench-network PART=overlap` measures one part.",
    sections=[
        Section(
            parts={"rate": namespace.measure},
            title="Rate of the loopback",
            method="""\
A `tbf` filter holds the loopback of a network namespace to a rate. All ranks and both directions
share it: in a ring of p ranks each has 1/p of it. Here one TCP connection sends for a second.""",
        ),
        Section(
            parts={"overlap": speed.measure_keras},
            title="Speed beside plain Horovod",
            method="""\
2 ranks of one thread each, on the same records, with the same global batch and in float32. Ours is
the real job: launcher, coordinator, workers. Plain Horovod is a loop around
`hvd.DistributedGradientTape` as its documents teach it, under a static `horovodrun`. The sides run
in turn; each training goes through all rates, and the median of its steps at a rate counts. A value
is our speed over the other side's in one repetition. Behind it stand the medians of a step of both,
and a step of the plain loop without any reduction and without a limit. Both use one build of
Horovod, with our patch: [what it changes](adr/0003-horovod-patch.md) makes the plain loop faster,
too. The same loop on Horovod as it was released (`make horovod-peer`) stands on a line of its own.

PyTorch's DDP (`make torch-peer`) trains the same layers; its kernels are others, so its speed
without a limit says what they make of it. What has both sides in PyTorch is the next part.

The batch of the 45 M dense model, 512, is chosen so that on this machine computing a step and
sending its gradients take about as long as each other, between 4 and 1 Gbit/s.""",
        ),
        Section(
            parts={"torch": speed.measure_torch},
            title="Speed in PyTorch",
            method="""\
2 ranks of one thread each, the same modules, global batch and arrays (`.npz`). Ours is the real job
with `framework=torch`. DDP runs on Gloo under a static `torchrun`, Horovod's `DistributedOptimizer`
under a static `horovodrun` on the Horovod that we build, torchft 0.2.0 with one replica a rank and
its lighthouse (`make torch-peer` has both). The peers read by a `DataLoader` with a
`DistributedSampler`. The fastest peer is that of each repetition. To reach is 1.00 of it without a
limit and at the slowest rate.""",
        ),
        Section(
            parts={"torch-memory": speed.measure_torch_memory},
            title="Memory in PyTorch",
            method="Of the rank that used most, in a training of some steps, beside DDP.",
        ),
        Section(
            parts={"torch-elastic": events.measure_torch},
            title="Events in PyTorch",
            method="""\
As in [the benchmarks of elasticity](benchmarks-elastic.md), all sides with the model of 0.7 M
parameters in PyTorch, on the same arrays, without a limit. torchft has its defaults (a replica that
sends no heartbeat for 5 s is lost), but its lighthouse waits only 1 s for replicas that are late,
and it adds each gradient by itself: with its buckets, version 0.2.0 ends with a killed replica.
After 10 s a rank that hangs is given up on all sides; torchft and TorchElastic then end what waits
for it.""",
        ),
        Section(
            parts={"timeline": timeline.measure},
            title="What overlaps with what",
            method="""\
Read from the timeline that Horovod's rank 0 writes, medians of some steps at the slowest rate.
Tensors are those that were negotiated in a step; operations are what was sent, fused tensors
together. Begin and end are those of the first and of the last operation, after the begin of the
step; plain Horovod begins to send as soon as the last layer's gradients are there. A cycle is how
often Horovod's loop looks for tensors that are ready.""",
        ),
        Section(
            parts={"buckets": speed.measure_buckets},
            title="Size of a bucket",
            method="Seconds of a step over `train.bucket_bytes`, medians of all repetitions.",
        ),
        Section(
            parts={"compression": speed.measure_compression},
            title="Compression",
            method="""\
Our speed with `train.compression=bf16` and `fp16` over plain Horovod's without compression and with
its own (`hvd.Compression.fp16`).""",
        ),
        Section(
            parts={"start": events.measure_start},
            title="Start of a worker",
            method=f"""\
A job of 2 ranks, from the start of its slower worker's process until it is warm, beside commit
{events.BASE_COMMIT[:8]}, the last one that sent all gradients in one piece after the backward pass.
Both run on the same packages, in turn.""",
        ),
        Section(
            parts={"memory": speed.measure_memory},
            title="Memory",
            method="""\
Of the rank that used most, in a training of some steps. The peak counts pages that processes share
in whole (VmHWM), the other line counts each process' part of them (PSS).""",
        ),
        Section(
            parts={"join": events.measure_joins},
            title="Join with a state of 541 MB",
            method=f"""\
The 45 M model with Adam and a global batch of {events.JOIN_BATCH_SIZE}; a worker joins a ring of
one. The join begins with the first step of the new ring and ends when the newcomer works. Its steps
on the rank that stays are held against their median, and that one against the median step of the
same ring after the join, in which each rank does half of the work. Below 16 MiB of state, and with
`elastic.join_share=0`, it is sent at once; that takes as long as in
[ADR 16](adr/0016-state-in-pieces.md).""",
        ),
        Section(
            parts={"index": events.measure_index},
            title="Index of many chunks",
            method="""\
Two processes open the data at the same time, as the ranks of a host do; the slower one counts, and
what both use together, pages that they share once (PSS).""",
        ),
        Section(
            parts={"elastic": events.measure_large},
            title="Events and goodput with 45 M parameters",
            method="""\
As in [the benchmarks of elasticity](benchmarks-elastic.md), with the 45 M model and Adam, without a
limit. There are no targets of their own: those of the page are for 0.7 M parameters.""",
        ),
        Section(
            parts={"scaling": scaling.measure},
            title="Scaling, a model",
            method=f"""\
Sending n bytes takes alpha + n / bandwidth (Hockney, 1994). A ring all-reduce over p ranks has
2 (p - 1) rounds, in which each rank sends 2 n (p - 1) / p bytes (Patarasuk and Yuan, 2009); with it
goes the time of a processor for each of these bytes. A step takes max(c, r) + (1 - overlap) min(c,
r) for computing c and reducing r. Alpha is half of what a sum of one number takes over two ranks,
its agreement included. The processor's time and the overlap are fitted by least
squares of the relative errors to ResNet-50 with {scaling.RECORDS_OF_RANK} pictures a rank, on
{", ".join(map(str, scaling.SIZES))} ranks. On the loopback all ranks share one link, so there n
bytes take 2 n (p - 1) / bandwidth; in a cluster each rank has a link of its own. Computing is not
modelled but measured, by the same number of ranks that reduce nothing: 4 ranks share 2 cores.
Hierarchical rings, stragglers and busy switches are not in it.""",
        ),
    ],
)


def main() -> int:
    """Measure what was asked for; returns 1 where a target is missed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = parser_of(PAGE, epilog=EXAMPLES, formatter_class=formatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    rates = {rate.bits_per_second / 1e9: rate for rate in RATES}
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        choices=rates,
        default=list(rates),
        help="Gbit/s; 0 is no limit",
    )
    parser.add_argument("--repetitions", type=int, help="of each side; default: 3, 1 with --quick")
    add_torch_python(parser)
    parser.add_argument(
        "--released-horovod", type=Path, default=MISSING, metavar="DIR", help="without patch"
    )
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
        "torch_python": Path(args.torch_python),
        "released_horovod": Path(os.path.abspath(args.released_horovod)),
    }
    return measure(PAGE, args, lambda folder: NetworkRun(folder, **options))


if __name__ == "__main__":
    sys.exit(main())
