"""The model of `tiny` on records that are dicts of columns: id, x of 4 numbers, y."""

import tensorflow as tf
from tiny import TinySpec

from edl_horovod import Mode


class RowsSpec(TinySpec):
    def create_dataset(self, dataset, mode):
        if mode == Mode.PREDICTION:
            return dataset.map(lambda row: {"x": row["x"]})
        return dataset.map(lambda row: ({"x": row["x"]}, tf.reshape(row["y"], [1])))
