"""What the models of tables share: records of a table's rows, and all but the model itself."""

import csv

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import ElasticDLSpec, Mode
from edl_horovod.columns import EMPTY_NUMBERS, Column, infer

HASH_BINS = 1000
NO_VALUE = "\0"
"""Stands for values that the training did not have."""


def records_from_csv(filename):
    """A serialized tf.Example for each row of a CSV file with a header.

    All fields stay text, because only all rows of all files tell what a column holds; an empty one
    is left out.
    """
    with open(filename, newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        for row in rows:
            if None in row:
                raise ValueError(f"line {rows.line_num} has more fields than the header has names")
            feature = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
                for name, text in row.items()
                if text
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            yield example.SerializeToString(deterministic=True)


class RegressionSpec(ElasticDLSpec):
    """Predicts the number in one column from those in others; a subclass makes the model.

    Columns that `numeric` and `categorical` do not name are left out; without both, all but the
    label are read, each as what its rows hold.
    """

    parses_batches = True

    def __init__(self, context=None, numeric=(), categorical=(), label="label"):
        super().__init__(context)
        kinds = dict.fromkeys((*numeric, label), "number")
        self._kinds = kinds | dict.fromkeys(categorical, "text")
        self._takes_all = not numeric and not categorical
        self._label = label

    def adapt(self, records, tell):
        found = infer((_row(record) for record in records), kinds=self._kinds)
        if missing := sorted(self._kinds.keys() - found.keys()):
            raise ValueError(f"no record has the column {missing[0]!r}; there are {sorted(found)}")
        if found[self._label].num_empty:
            row = found[self._label].first_empty + 1
            raise ValueError(f"the label {self._label!r} is empty in row {row}")
        names = sorted(found if self._takes_all else self._kinds)
        for name in names:
            tell(f"column {found[name]}")
        return [found[name].to_json() for name in names]

    def columns(self):
        """The columns that the model reads, of numbers first."""
        found = [Column.from_json(each) for each in self.adapted]
        return sorted(
            (column for column in found if column.name != self._label),
            key=lambda column: (column.kind, column.name),
        )

    def create_dataset(self, dataset, mode):
        texts = tf.io.FixedLenFeature([1], tf.string, default_value="")
        description = {column.name: texts for column in self.columns()}
        if mode != Mode.PREDICTION:
            description[self._label] = tf.io.FixedLenFeature([1], tf.string)

        def parse(records):
            cells = tf.io.parse_example(records, description)
            features = {
                column.name: _values(column, cells[column.name]) for column in self.columns()
            }
            if mode == Mode.PREDICTION:
                return features
            return features, tf.strings.to_number(cells[self._label])

        return dataset.map(parse)

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.01):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": tf.reduce_mean(tf.abs(outputs - labels))}

    def inputs(self):
        """The model's inputs, by column."""
        return {
            column.name: keras.Input(
                (1,), name=column.name, dtype="string" if column.kind == "text" else "float32"
            )
            for column in self.columns()
        }

    def encoded(self, inputs, width):
        """The columns beside each other: numbers as they are, a text as `width` trained numbers."""
        parts = [_encoded(column, inputs[column.name], width) for column in self.columns()]
        return parts[0] if len(parts) == 1 else layers.Concatenate()(parts)


def _row(record):
    example = tf.train.Example.FromString(record)
    row = {}
    for name, feature in example.features.feature.items():
        if feature.WhichOneof("kind") != "bytes_list":
            raise ValueError(f"{name!r} is no text: prepare the records again with edl prepare")
        row[name] = feature.bytes_list.value[0].decode() if feature.bytes_list.value else ""
    return row


def _values(column, cells):
    if column.kind == "text":
        return cells
    is_empty = tf.reduce_any([tf.equal(cells, text) for text in EMPTY_NUMBERS], axis=0)
    return tf.strings.to_number(tf.where(is_empty, repr(column.mean), cells))


def _encoded(column, values, width):
    if column.kind == "number":
        return values
    if column.vocabulary:
        lookup = layers.StringLookup(vocabulary=column.vocabulary, oov_token=NO_VALUE)
        num_values = len(column.vocabulary) + 1
    else:
        lookup, num_values = layers.Hashing(HASH_BINS), HASH_BINS
    embedded = layers.Embedding(num_values, width, name=f"{column.name}_as_{width}")
    return layers.Flatten()(embedded(lookup(values)))
