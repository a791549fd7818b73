"""What the models of tables share: records of a table's rows, and all but the model itself."""

import csv

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import ElasticDLSpec, Mode

HASH_BINS = 1000


def records_from_csv(filename):
    """A serialized tf.Example for each row of a CSV file with a header.

    A field that is a number becomes a float, any other text bytes; an empty one is left out.
    """
    with open(filename, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            feature = {name: _feature(text) for name, text in row.items() if text}
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            yield example.SerializeToString(deterministic=True)


def _feature(text):
    try:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[float(text)]))
    except ValueError:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))


class RegressionSpec(ElasticDLSpec):
    """Predicts the number in one column from those in others; a subclass makes the model."""

    parses_batches = True

    def __init__(self, context=None, numeric=(), categorical=(), label="label"):
        super().__init__(context)
        if not numeric and not categorical:
            raise ValueError(
                "the model is not told its columns; set numeric=['...'] and categorical=['...']"
                " among the params"
            )
        self._numeric, self._categorical, self._label = list(numeric), list(categorical), label

    def create_dataset(self, dataset, mode):
        description = {name: tf.io.FixedLenFeature([1], tf.float32) for name in self._numeric}
        description |= {name: tf.io.FixedLenFeature([1], tf.string) for name in self._categorical}
        if mode != Mode.PREDICTION:
            description[self._label] = tf.io.FixedLenFeature([1], tf.float32)

        def parse(records):
            columns = tf.io.parse_example(records, description)
            if mode == Mode.PREDICTION:
                return columns
            label = columns.pop(self._label)
            return columns, label

        return dataset.map(parse)

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.01):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": tf.reduce_mean(tf.abs(outputs - labels))}

    def inputs(self):
        """The model's inputs, by column."""
        inputs = {name: keras.Input((1,), name=name) for name in self._numeric}
        return inputs | {
            name: keras.Input((1,), name=name, dtype="string") for name in self._categorical
        }

    def encoded(self, inputs, width):
        """The columns beside each other; a text is hashed, and has `width` trained numbers."""
        columns = [inputs[name] for name in self._numeric]
        for name in self._categorical:
            number = layers.Hashing(HASH_BINS)(inputs[name])
            embedded = layers.Embedding(HASH_BINS, width, name=f"{name}_as_{width}")(number)
            columns.append(layers.Flatten()(embedded))
        return columns[0] if len(columns) == 1 else layers.Concatenate()(columns)
