"""A PyTorch training by hand on tensors in memory: a plain loop, DDP, or Horovod's optimizer."""

import argparse
import os
import sys
from collections.abc import Iterator

import horovod.torch as hvd
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.arrays import FILE_NAME
from benchmarks.common import StepClock, side_parser, write_numbers
from benchmarks.models.torch_network import MODELS
from benchmarks.peers.torch_loop import train_on

KINDS = ("loop", "ddp", "horovod")
NUM_RANKS = 2


def main() -> int:
    """Train and measure all steps after the warm-up; returns the exit code."""
    parser = side_parser(str(__doc__))
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    args = parser.parse_args()
    if args.kind == "ddp":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.multiprocessing.spawn(_train, (NUM_RANKS, args), nprocs=NUM_RANKS)
    elif args.kind == "horovod":
        hvd.init()
        _train(hvd.rank(), hvd.size(), args)
    else:
        _train(0, 1, args)
    return 0


def _train(rank: int, size: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, make_optimizer, learning_rate = MODELS[args.model]
    model = make()
    optimizer = make_optimizer(model.parameters(), learning_rate)
    if args.kind == "ddp":
        meeting = f"file://{args.place.resolve()}.meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        model = DistributedDataParallel(model)
    if args.kind == "horovod":
        named = model.named_parameters()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    batches = _batches(args, rank, size)
    clock = StepClock(args.warmup_steps)
    for _ in range(args.total_steps):
        train_on(model, optimizer, *next(batches))
        clock.tick()
    if rank == 0:
        write_numbers(args.place, {"step_seconds": clock.step_seconds})
    if args.kind == "ddp":
        dist.barrier()  # A rank that leaves while another one is in its last step lets it hang.
        dist.destroy_process_group()


def _batches(
    args: argparse.Namespace, rank: int, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A rank's pictures and labels, shuffled in each epoch, without an end."""
    with np.load(args.data / FILE_NAME) as arrays:
        pictures, labels = (torch.from_numpy(arrays[name]) for name in ("image", "label"))
    random, batch_size = torch.Generator().manual_seed(0), args.batch_size
    while True:
        order = torch.randperm(len(labels), generator=random)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            own = order[start + rank : start + batch_size : size]
            yield pictures[own].float() / 255, labels[own]


if __name__ == "__main__":
    sys.exit(main())
