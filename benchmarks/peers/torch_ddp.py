"""A PyTorch training over a network: DDP on Gloo under `torchrun`, with the models of all sides.

The models have the layers of `benchmarks/models/network.py`. The batch is one in memory.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]
from torch import nn
from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found]

from benchmarks.elastic.stamps import Stamper

LEARNING_RATE = 0.001
NUM_CLASSES = 10
PICTURE_SHAPE = (3, 64, 64)
WIDTH_OF_DENSE = 3264


def main() -> int:
    """Train as one rank; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stamps", type=Path, required=True, help="folder of RANK.PID files")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="the global batch, records")
    parser.add_argument("--total-steps", type=int, required=True)
    args = parser.parse_args()
    # torchrun sets it: as many as the other sides' ranks have.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    make, optimize = MODELS[args.model]
    model = DistributedDataParallel(make())
    optimizer = optimize(model.parameters(), LEARNING_RATE)
    measure = nn.CrossEntropyLoss()
    pictures = torch.rand(args.batch_size // size, *PICTURE_SHAPE)
    labels = torch.randint(0, NUM_CLASSES, (args.batch_size // size,))
    stamper = Stamper(args.stamps / f"{dist.get_rank()}.{os.getpid()}")
    for step in range(args.total_steps):
        optimizer.zero_grad()
        loss = measure(model(pictures), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        stamper.step(step + 1, size)
    dist.destroy_process_group()
    return 0


def _conv() -> nn.Module:
    """8 convolutions and 2 dense layers."""
    parts: list[nn.Module] = []
    before = PICTURE_SHAPE[0]
    for number, filters in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
        stride = 2 if number % 2 else 1
        parts += [nn.Conv2d(before, filters, 3, stride, padding=1), nn.ReLU()]
        before = filters
    parts += [nn.Flatten(), nn.Linear(before * 4 * 4, 850), nn.ReLU(), nn.Linear(850, NUM_CLASSES)]
    return nn.Sequential(*parts)


def _dense() -> nn.Module:
    """5 dense layers on a picture of 16 x 16."""
    parts: list[nn.Module] = [nn.AvgPool2d(4), nn.Flatten()]
    before = PICTURE_SHAPE[0] * 16 * 16
    for _ in range(5):
        parts += [nn.Linear(before, WIDTH_OF_DENSE), nn.ReLU()]
        before = WIDTH_OF_DENSE
    return nn.Sequential(*parts, nn.Linear(before, NUM_CLASSES))


class _Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not in the environment of mypy.
    """Three convolutions beside a shortcut (He et al., 2015, "Deep Residual Learning")."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *_normed(before, width, 1, stride),
            nn.ReLU(),
            *_normed(width, width, 3, 1),
            nn.ReLU(),
            *_normed(width, after, 1, 1),
        )
        is_same = before == after and stride == 1
        self.shortcut = (
            nn.Identity() if is_same else nn.Sequential(*_normed(before, after, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of pictures."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def _resnet() -> nn.Module:
    """ResNet-50; the strides are in the first convolution of a block, as in Keras."""
    parts = [*_normed(PICTURE_SHAPE[0], 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    before = 64
    for stage, (width, num_blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(num_blocks):
            parts.append(_Bottleneck(before, width, 2 if stage and not block else 1))
            before = 4 * width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, NUM_CLASSES)
    )


def _normed(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    # Keras' convolutions have a bias beside the one of the normalization.
    return (
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2),
        nn.BatchNorm2d(after),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer]]] = {
    "conv": (_conv, torch.optim.SGD),
    "resnet": (_resnet, torch.optim.SGD),
    "dense": (_dense, torch.optim.Adam),
}


if __name__ == "__main__":
    sys.exit(main())
