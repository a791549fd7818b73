"""An elastic PyTorch training, as PyTorch's documents teach it: DDP on Gloo under `torchrun`.

Follows https://docs.pytorch.org/docs/stable/elastic/train_script.html: load the checkpoint at the
start, save one now and then.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.elastic.stamps import Stamper
from benchmarks.peers.torch_loop import batches, make, parser, train_on

CHECKPOINT_STEPS = 50


def main() -> int:
    """Train until somebody ends it; returns the exit code."""
    arguments = parser(str(__doc__).partition("\n")[0])
    arguments.add_argument("--agent", required=True, help="name of the agent that started this")
    arguments.add_argument("--timeout", type=float, default=1800.0, help="of collectives, seconds")
    args = arguments.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    model, optimizer = make(args.model)
    checkpoint = args.stamps.parent / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    parallel = DistributedDataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    data = batches(args.data, args.batch_size // size, rank=rank, size=size)
    stamper = Stamper(args.stamps / f"{args.agent}.{os.getpid()}")
    while True:
        train_on(parallel, optimizer, *next(data))
        step += 1
        stamper.step(step, size)
        if step % CHECKPOINT_STEPS == 0 and rank == 0:
            whole = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "step": step}, whole)
            whole.replace(checkpoint)


if __name__ == "__main__":
    sys.exit(main())
