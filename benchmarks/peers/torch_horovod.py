"""A PyTorch training with Horovod's own optimizer, as Horovod's documents teach it.

Follows https://horovod.readthedocs.io/en/stable/pytorch.html; the learning rate is not scaled,
because the global batch is that of the other sides.
"""

import sys

import horovod.torch as hvd

from benchmarks.peers.torch_loop import make, parser, train_as


def main() -> int:
    """Train as one rank; returns the exit code."""
    args = parser(str(__doc__).partition("\n")[0]).parse_args()
    hvd.init()
    model, optimizer = make(args.model)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train_as(hvd.rank(), hvd.size(), args, model, optimizer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
