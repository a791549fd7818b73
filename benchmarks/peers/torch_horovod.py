"""A PyTorch training with Horovod's own optimizer, as Horovod's documents teach it.

Follows https://horovod.readthedocs.io/en/stable/pytorch.html; the learning rate is not scaled,
because the global batch is that of the other sides.
"""

import os
import sys

import horovod.torch as hvd

from benchmarks.elastic.stamps import Stamper
from benchmarks.peers.torch_loop import batches, make, parser, train_on
from benchmarks.watched import write_memory


def main() -> int:
    """Train as one rank; returns the exit code."""
    args = parser(str(__doc__).partition("\n")[0]).parse_args()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model, optimizer = make(args.model)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = batches(args.data, args.batch_size // size, rank=rank, size=size)
    stamper = Stamper(args.stamps / f"{rank}.{os.getpid()}")
    for step in range(args.total_steps):
        train_on(model, optimizer, *next(data))
        stamper.step(step + 1, size)
    write_memory(args.stamps, str(rank))
    return 0


if __name__ == "__main__":
    sys.exit(main())
