"""`formats` in PyTorch: the paced model on records that hold x and y, or pictures of 2 x 2."""

import io

import numpy as np
import torch
from PIL import Image
from torch_paced import PacedSpec

from edl_horovod import Mode


def tensors(column):
    """One tensor of a column, whatever the format gives: bytes of float32, or numbers."""
    if isinstance(column, torch.Tensor):
        return column.float()
    rows = [np.frombuffer(row, "<f4") if isinstance(row, bytes) else row for row in column]
    return torch.stack([torch.tensor(np.asarray(row), dtype=torch.float32) for row in rows])


def pixels(picture):
    return np.asarray(Image.open(io.BytesIO(picture)), np.float32).reshape(4) / 255


class FormatSpec(PacedSpec):
    def create_dataset(self, columns, mode):
        if "image" in columns:
            x = torch.tensor(np.array([pixels(picture) for picture in columns["image"]]))
            y = tensors(columns["label"])
        else:
            x, y = tensors(columns["x"]), tensors(columns["y"])
        return {"x": x} if mode is Mode.PREDICTION else ({"x": x}, y.reshape(-1, 1))
