"""A linear model in the framework of tests/numpy_framework.py; it needs NumPy alone."""

import numpy as np

from edl_horovod import ElasticDLSpec, Mode


class LineSpec(ElasticDLSpec):
    def create_model(self):
        return np.zeros((4, 1))

    def create_dataset(self, records, mode):
        # The floats of tests.records.example: x before the 15 bytes of y, the last 4 its value.
        x = np.frombuffer(b"".join(record[-31:-15] for record in records), "<f4")
        y = np.frombuffer(b"".join(record[-4:] for record in records), "<f4")
        is_predicting = mode is Mode.PREDICTION
        return x.reshape(-1, 4).astype(float), None if is_predicting else y[:, np.newaxis]

    def create_loss(self, outputs, labels):
        return np.mean((outputs - labels) ** 2)

    def create_optimizer(self, lr=0.1):
        return lr
