"""A PyTorch training over a network: DDP on Gloo under `torchrun`."""

import sys

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.torch_loop import make, parser, train_as


def main() -> int:
    """Train as one rank; returns the exit code."""
    args = parser(str(__doc__)).parse_args()
    dist.init_process_group("gloo")
    model, optimizer = make(args.model)
    parallel = DistributedDataParallel(model)
    train_as(dist.get_rank(), dist.get_world_size(), args, parallel, optimizer)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
