"""What the peers with PyTorch share: their arguments, the model by its name, the batches.

Only PyTorch and NumPy: their environments need not have our packages.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.elastic.stamps import Stamper
from benchmarks.models.torch_network import MODELS
from benchmarks.watched import write_memory

__all__ = ["batches", "make", "parser", "train_as", "train_on"]


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments that each of these peers takes.

    Args:
        description: Of the peer.
    """
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--stamps", type=Path, required=True, help="folder where ranks stamp steps")
    found.add_argument("--data", type=Path, required=True, help="folder of pictures.npz")
    found.add_argument("--model", choices=MODELS, required=True)
    found.add_argument("--batch-size", type=int, required=True, help="the global batch, records")
    found.add_argument("--total-steps", type=int, default=0, help="0: no end")
    return found


def make(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, the same on all ranks."""
    # As many as the ranks of the other sides have.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    model, optimizer, learning_rate = MODELS[name]
    made = model()
    return made, optimizer(made.parameters(), learning_rate)


def batches(
    data: Path, batch_size: int, *, rank: int, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A rank's pictures and labels, shuffled anew in each epoch, without an end.

    Args:
        data: Folder of the arrays.
        batch_size: Of this rank, records.
        rank: Which one.
        size: Of how many.
    """
    with np.load(data / "pictures.npz") as arrays:
        images, labels = (torch.from_numpy(arrays[name]) for name in ("image", "label"))
    dataset = TensorDataset(images, labels)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        dataset, num_replicas=size, rank=rank
    )
    loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for picture, label in loader:
            yield picture.float() / 255, label
        epoch += 1


def train_on(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """One step; returns when its loss is there."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loss.item()


def train_as(
    rank: int,
    size: int,
    args: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Train for all steps as one rank of a ring that does not change, and leave its figures.

    Args:
        rank: Which one.
        size: Of how many.
        args: Of `parser`.
        model: What is trained.
        optimizer: Of the model.
    """
    data = batches(args.data, args.batch_size // size, rank=rank, size=size)
    stamper = Stamper(args.stamps / f"{rank}.{os.getpid()}")
    for step in range(args.total_steps):
        train_on(model, optimizer, *next(data))
        stamper.step(step + 1, size)
    write_memory(args.stamps, str(rank))
