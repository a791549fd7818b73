"""Modules as people write them for Hugging Face's libraries, and without labels."""

from collections import OrderedDict
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import nn

NUM_WORDS, LENGTH, NUM_CLASSES = 20, 5, 3


class ModelOutput(OrderedDict):
    """Of the shape of `transformers.utils.ModelOutput`: fields, and items that are not None."""

    def __init_subclass__(cls):
        # So that torch.export knows it.
        torch.utils._pytree.register_pytree_node(
            cls,
            lambda output: (list(output.values()), list(output)),
            lambda values, names: cls(**dict(zip(names, values, strict=True))),
            serialized_type_name=cls.__name__,
        )

    def __post_init__(self):
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]

    def __setattr__(self, name, value):
        if name in self and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self):
        if not is_dataclass(self):
            return super().__reduce__()
        create, _, *rest = super().__reduce__()
        return create, tuple(getattr(self, field.name) for field in fields(self)), *rest


@dataclass
class ClassifierOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple | None = None


class Classifier(nn.Module):
    """Its loss is with its outputs where it is handed labels."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, 6)
        self.classes = nn.Linear(6, NUM_CLASSES)
        self.reduction = reduction

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        words = self.words(input_ids)
        if attention_mask is not None:
            words = words * attention_mask.unsqueeze(-1)
        logits = self.classes(words.mean(1))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels, reduction=self.reduction)
        return ClassifierOutput(loss, logits, (words,))

    def configure_optimizers(self, lr=0.1):
        return torch.optim.SGD(self.parameters(), lr)


@dataclass(frozen=True)
class Restored:
    code: torch.Tensor
    values: torch.Tensor
    spread: torch.Tensor | None = None


class Autoencoder(nn.Module):
    """It is trained without labels."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        code = self.encoder(x).tanh()
        return Restored(code, self.decoder(code))

    def loss(self, outputs, features):
        return nn.functional.mse_loss(outputs.values, features)

    def metrics(self, outputs, features):
        return {"furthest": (outputs.values - features).abs().amax(1)}

    def configure_optimizers(self, lr=0.1):
        return torch.optim.SGD(self.parameters(), lr)


def feed(records, mode):
    """Of tensors, which are features alone, or of a dict in which labels are, too."""
    if isinstance(records, torch.Tensor):
        return records, None
    return {name: value for name, value in records.items() if name != "labels"}, records["labels"]


def points():
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(5))
    return [torch.cat([point[:3], point[:1]]) for point in x]


def texts():
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(NUM_WORDS, (48, LENGTH), generator=random)
    mask = torch.ones(LENGTH)
    return [
        {"input_ids": words, "attention_mask": mask, "labels": number % NUM_CLASSES}
        for number, words in enumerate(ids)
    ]
