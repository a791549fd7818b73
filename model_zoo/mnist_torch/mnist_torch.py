"""MNIST in PyTorch: the network of `mnist_subclass`."""

import torch
from torch import nn
from torch_images import ImageClassifierSpec, record_from_image

IMAGE_SHAPE = (28, 28)


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


class MnistModel(nn.Module):
    def __init__(self, dropout=0.25, groups=0):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.norm = nn.GroupNorm(groups, 64) if groups else nn.BatchNorm2d(64, eps=1e-3)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(64 * 12 * 12, 10)

    def forward(self, inputs):
        x = inputs["image"].unsqueeze(1)
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = self.dropout(self.pool(self.norm(x)))
        return self.dense(x.flatten(1))


class MnistTorchSpec(ImageClassifierSpec):
    image_shape = IMAGE_SHAPE

    def create_model(self, dropout=0.25, groups=0):
        """BatchNorm mixes examples; with `groups`, GroupNorm is in its place."""
        return MnistModel(dropout, groups)
