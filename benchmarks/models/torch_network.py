"""The models of `cnn.py` and `network.py` in PyTorch, for all sides that train with it.

Only PyTorch: the peers' environments need not have our packages.
"""

from collections.abc import Callable

import torch
from torch import nn

NUM_CLASSES = 10
PICTURE_SHAPE = (3, 64, 64)
WIDTH_OF_DENSE = 3264


def _small() -> nn.Module:
    """2 convolutions and 2 dense layers on a picture of 28 x 28."""
    first = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten())
    dense = (nn.Linear(32 * 11 * 11, 176), nn.ReLU(), nn.Linear(176, NUM_CLASSES))
    return nn.Sequential(*first, *second, *dense)


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


def _mlp() -> nn.Module:
    """3 dense layers on a picture of 6 x 6: half a millisecond a step."""
    hidden = (nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, NUM_CLASSES))


def _middle() -> nn.Module:
    """3 convolutions and 2 dense layers on a picture of 32 x 32: a tenth of a second a step."""
    parts: list[nn.Module] = []
    for before, after, is_pooled in ((3, 32, False), (32, 32, True), (32, 64, True)):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        parts += [nn.MaxPool2d(2)] if is_pooled else []
    dense = (nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, NUM_CLASSES))
    return nn.Sequential(*parts, nn.Flatten(), *dense)


class _Transformer(nn.Module):
    """2 blocks of a transformer (Vaswani et al., 2017) on the 64 patches of a picture."""

    def __init__(self, width: int = 256, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(PICTURE_SHAPE[0], width, patch, stride=patch)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2)
        self.classes = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures by the mean of their patches."""
        return self.classes(self.blocks(self.patches(x).flatten(2).mT).mean(dim=1))


class _Bottleneck(nn.Module):
    """Three convolutions beside a shortcut (He et al., 2015, "Deep Residual Learning")."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        first, second = _normed(before, width, 1, stride), _normed(width, width, 3, 1)
        third = _normed(width, after, 1, 1)
        self.body = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *third)
        is_same = before == after and stride == 1
        self.shortcut = nn.Sequential(*(() if is_same else _normed(before, after, 1, stride)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the convolved pictures to the shortcut."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def _resnet() -> nn.Module:
    """ResNet-50; the strides are in the first convolution of a block, as in Keras."""
    parts = [*_normed(PICTURE_SHAPE[0], 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    before = 64
    for stage, (width, num_blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(num_blocks):
            parts.append(_Bottleneck(before, width, 2 if stage and not block else 1))
            before = 4 * width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, NUM_CLASSES)]
    return nn.Sequential(*parts)


def _normed(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    # Keras' convolutions have a bias beside the one of the normalization.
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2)
    return convolution, nn.BatchNorm2d(after)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer], float]] = {
    "conv": (_conv, torch.optim.SGD, 0.001),
    "resnet": (_resnet, torch.optim.SGD, 0.001),
    "dense": (_dense, torch.optim.Adam, 0.001),
    "small": (_small, torch.optim.SGD, 0.01),
    "mlp": (_mlp, torch.optim.Adam, 0.001),
    "transformer": (_Transformer, torch.optim.AdamW, 0.0003),
    "middle": (_middle, torch.optim.Adam, 0.001),
}
"""What makes a model and its optimizer, and the learning rate, by the name of the model."""
