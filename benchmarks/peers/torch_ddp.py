"""A PyTorch training over a network: DDP on Gloo under `torchrun`."""

import os
import sys

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.elastic.stamps import Stamper
from benchmarks.peers.torch_loop import batches, make, parser, train_on
from benchmarks.watched import write_memory


def main() -> int:
    """Train as one rank; returns the exit code."""
    args = parser(str(__doc__)).parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    module, optimizer = make(args.model)
    model = DistributedDataParallel(module)
    data = batches(args.data, args.batch_size // size, rank=rank, size=size)
    stamper = Stamper(args.stamps / f"{rank}.{os.getpid()}")
    for step in range(args.total_steps):
        train_on(model, optimizer, *next(data))
        stamper.step(step + 1, size)
    write_memory(args.stamps, str(rank))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
