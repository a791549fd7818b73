"""A spec whose examples are the pictures' bytes, as they come from data of any format."""

# The methods are described by `ElasticDLSpec`.
# ruff: noqa: D102

from typing import Any

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec, Mode

DESCRIPTION = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


class PicturesSpec(ElasticDLSpec):
    """Parses what must be parsed, a step at a time, and decodes nothing."""

    parses_batches = True

    def create_model(self) -> keras.Model:
        raise NotImplementedError

    def create_loss(self, outputs: Any = None, labels: Any = None) -> Any:
        raise NotImplementedError

    def create_optimizer(self, lr: float = 0.1) -> Any:
        raise NotImplementedError

    def create_dataset(self, dataset: Any, mode: Mode) -> Any:
        def examples(records: Any) -> tuple[Any, Any]:
            if not isinstance(records, dict):
                records = tf.io.parse_example(records, DESCRIPTION)
            if "png" in records:
                return records["png"], tf.strings.to_number(records["cls"], tf.int64)
            return records["image"], records["label"]

        return dataset.map(examples)
