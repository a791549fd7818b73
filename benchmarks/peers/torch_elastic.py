"""An elastic PyTorch training, as PyTorch's documents teach it: DDP on Gloo under `torchrun`.

Follows https://docs.pytorch.org/docs/stable/elastic/train_script.html: load the checkpoint at the
start, save one now and then. The model has the layers of `benchmarks/models/cnn.py`. The batch is
one in memory, so that no input pipeline is part of a stall.
"""

import argparse
import os
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]
from torch import nn
from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found]

from benchmarks.elastic.stamps import Stamper

CHECKPOINT_STEPS = 50
LEARNING_RATE = 0.01


def main() -> int:
    """Train until somebody ends it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stamps", type=Path, required=True, help="folder of AGENT.PID files")
    parser.add_argument("--agent", required=True, help="name of the agent that started this")
    parser.add_argument("--batch-size", type=int, default=128, help="the global batch, records")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = _model()
    checkpoint = args.stamps.parent / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    measure = nn.CrossEntropyLoss()
    size = dist.get_world_size()
    images = torch.rand(args.batch_size // size, 1, 28, 28)
    labels = torch.randint(0, 10, (args.batch_size // size,))
    stamper = Stamper(args.stamps / f"{args.agent}.{os.getpid()}")
    while True:
        optimizer.zero_grad()
        loss = measure(parallel(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        step += 1
        stamper.step(step, size)
        if step % CHECKPOINT_STEPS == 0 and dist.get_rank() == 0:
            whole = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "step": step}, whole)
            whole.replace(checkpoint)


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 11 * 11, 176),
        nn.ReLU(),
        nn.Linear(176, 10),
    )


if __name__ == "__main__":
    sys.exit(main())
