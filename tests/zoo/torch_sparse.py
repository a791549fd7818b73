"""A model of nothing but embeddings with sparse gradients, for the records of tests.records."""

import torch
from torch import nn
from torch_tiny import TorchTinySpec


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Embedding(40, 3, sparse=True) for _ in range(2))
        self.bags = nn.EmbeddingBag(40, 1, sparse=True)

    def forward(self, features):
        ids = (features["x"] * 8).long().remainder(40)
        products = self.left(ids[:, 0]) * self.right(ids[:, 1])
        return products.sum(1, keepdim=True) + self.bags(ids)


OPTIMIZERS = {
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "sparse adam": lambda p: torch.optim.SparseAdam(p, 0.05),
}


class TorchSparseSpec(TorchTinySpec):
    def create_model(self):
        return Factors()

    def create_optimizer(self, model, kind="sgd"):
        return OPTIMIZERS[kind](model.parameters())
