"""What the image classifiers in PyTorch share: everything but the model itself.

Their records are those of `image_records.py`.
"""

from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch.nn import functional

from edl_horovod import ElasticDLSpec, Mode
from edl_horovod.records.examples import example, read_examples


def label_of(filename):
    """The class of an image is the name of its folder; None where that is not a whole number."""
    folder = Path(filename).parent.name
    return int(folder) if folder.isdecimal() else None


def record_from_image(filename, *, shape):
    """A serialized example: the pixels, 0 to 255, and the label if the folder gives one."""
    with PIL.Image.open(filename) as image:
        image = image.convert("RGB" if len(shape) == 3 else "L")
        height, width = shape[:2]
        if image.size != (width, height):
            image = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.float32)
    label = label_of(filename)
    return example({"image": pixels} if label is None else {"image": pixels, "label": [label]})


class ImageClassifierSpec(ElasticDLSpec):
    """Classifies `record_from_image` records; a subclass sets the shape and makes the model."""

    image_shape = ()

    def create_dataset(self, dataset, mode):
        shapes = {"image": self.image_shape}
        if mode != Mode.PREDICTION:
            shapes["label"] = ()
        found = read_examples(dataset, shapes)
        features = {"image": torch.from_numpy(found["image"] / 255.0)}
        return features if mode == Mode.PREDICTION else (features, torch.from_numpy(found["label"]))

    def create_loss(self, outputs, labels):
        return functional.cross_entropy(outputs, labels)

    def create_optimizer(self, model, lr=0.001):
        return torch.optim.Adam(model.parameters(), lr)

    def create_metrics(self, mode, outputs, labels):
        if mode != Mode.EVALUATION:
            return {}
        return {"accuracy": (outputs.argmax(1) == labels).float()}
