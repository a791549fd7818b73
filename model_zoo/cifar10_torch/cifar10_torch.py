"""CIFAR-10 in PyTorch: the network of `cifar10_subclass`."""

import torch
from torch import nn
from torch_images import ImageClassifierSpec, record_from_image

IMAGE_SHAPE = (32, 32, 3)


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


class Convolutions(nn.Module):
    """Two normalised convolutions of one width, then half the height and width."""

    def __init__(self, channels, filters, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters, eps=1e-3)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters, eps=1e-3)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.dropout(self.pool(x))


class Cifar10Model(nn.Module):
    def __init__(self, filters=(32, 64, 128), dropout=0.3):
        super().__init__()
        widths = (IMAGE_SHAPE[2], *filters)
        self.blocks = nn.ModuleList(
            Convolutions(channels, width, dropout)
            for channels, width in zip(widths, filters, strict=False)
        )
        side = IMAGE_SHAPE[0] // 2 ** len(filters)
        self.dense = nn.Linear(widths[-1] * side * side, 10)

    def forward(self, inputs):
        x = inputs["image"].permute(0, 3, 1, 2)
        for block in self.blocks:
            x = block(x)
        return self.dense(x.flatten(1))


class Cifar10TorchSpec(ImageClassifierSpec):
    image_shape = IMAGE_SHAPE

    def create_model(self, filters=(32, 64, 128), dropout=0.3):
        return Cifar10Model(filters, dropout)
