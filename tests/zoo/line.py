"""A linear model in the framework of tests/numpy_framework.py; it needs NumPy alone."""

import numpy as np

from edl_horovod import ElasticDLSpec, Mode
from edl_horovod.records.examples import read_examples


class LineSpec(ElasticDLSpec):
    def create_model(self):
        return np.zeros((4, 1))

    def create_dataset(self, records, mode):
        columns = read_examples(records, {"x": (4,), "y": (1,)})
        labels = None if mode is Mode.PREDICTION else columns["y"]
        return columns["x"].astype(float), labels

    def create_loss(self, outputs, labels):
        return np.mean((outputs - labels) ** 2)

    def create_optimizer(self, lr=0.1):
        return lr
