"""The layers of the models of tables in Keras."""

import keras
import numpy as np
import table_spec
import tensorflow as tf
from keras import layers, ops


def examples(dataset, columns, features, *, require, encode, label_dtype, is_weighted):
    """The examples of the rows of each step, made by `encode` of their cells."""
    names = [column.name for column in columns]
    if isinstance(dataset.element_spec, dict):
        given = dataset.element_spec
        require({name: np.dtype(given[name].dtype.as_numpy_dtype) for name in given})
    else:
        cell = tf.io.FixedLenFeature([], tf.string, default_value="")
        description = dict.fromkeys(names, cell)
        dataset = dataset.map(lambda records: tf.io.parse_example(records, description))
    inputs = inputs_of(features)
    keys = sorted(inputs)
    types = [tf.as_dtype(inputs[key].dtype) for key in keys]
    types += [] if label_dtype is None else [tf.as_dtype(label_dtype)]
    types += [tf.float32] if is_weighted else []

    def arrays_of(*cells):
        found, *rest = encode(dict(zip(names, cells, strict=True)))
        return [*(found[key] for key in keys), *rest]

    def example(row):
        found = tf.numpy_function(arrays_of, [row[name] for name in names], types)
        made = {
            key: tf.ensure_shape(value, inputs[key].shape)
            for key, value in zip(keys, found, strict=False)
        }
        rest = [tf.ensure_shape(value, (None,)) for value in found[len(keys) :]]
        return (made, *rest) if rest else made

    return dataset.map(example)


def inputs_of(features):
    """The inputs of a model, by name."""
    found = {
        f"{name}_numbers": keras.Input((part.width,), name=f"{name}_numbers", dtype="float32")
        for name, part in features.parts.items()
        if part.numbers
    }
    for name, codes in features.codes.items():
        shape = (None,) if codes.is_sequence else (1,)
        found[name] = keras.Input(shape, name=name, dtype="int64")
    return found


def network(features, hidden_units, head):
    """A dense network and a linear model, added up.

    The linear model reads the part `wide` where the features have it, else what the network reads.
    """
    num_outputs, outputs_of = head
    inputs = inputs_of(features)
    deep = _part(features, inputs, "deep", 8)
    wide = _part(features, inputs, "wide", num_outputs) if "wide" in features.parts else deep
    x = ops.clip(deep, -table_spec.MOST_DEVIATIONS, table_spec.MOST_DEVIATIONS)
    for units in hidden_units:
        x = layers.Dense(units, activation="relu")(x)
    return keras.Model(inputs, outputs_of(_output(num_outputs)(x) + _output(num_outputs)(wide)))


def linear(features, head):
    """A linear model: of a category each output has a weight."""
    num_outputs, outputs_of = head
    inputs = inputs_of(features)
    read = _part(features, inputs, "deep", num_outputs)
    return keras.Model(inputs, outputs_of(_output(num_outputs)(read)))


def number(mean, deviation):
    """A head that predicts a number of this mean and deviation."""
    return 1, lambda raw: {"prediction": ops.squeeze(raw, -1) * deviation + mean}


def classes(num_classes):
    """A head that predicts one of so many classes."""
    return num_classes, lambda raw: {
        "class": ops.argmax(raw, -1),
        "logits": raw,
        "probabilities": ops.softmax(raw),
    }


def squared_error(predicted, labels, deviation):
    return tf.reduce_mean(tf.square((predicted - labels) / deviation))


def cross_entropy(logits, labels, weights):
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return tf.reduce_mean(losses if weights is None else losses * weights)


def is_right(predicted, labels):
    return tf.cast(tf.equal(tf.cast(predicted, labels.dtype), labels), tf.float32)


def adam(model, lr):
    return keras.optimizers.Adam(lr)


def _output(num_outputs):
    """A dense layer that begins with zeros, so that the model begins as the head's constant."""
    return layers.Dense(num_outputs, dtype="float32", kernel_initializer="zeros")


def _part(features, inputs, name, width):
    """What a part of the model reads: its numbers, and an embedding for each of its tables."""
    part = features.parts[name]
    found = [inputs[f"{name}_numbers"]] if part.numbers else []
    for table in part.tables:
        dimension = table.dimension or width
        layer = layers.Embedding(table.num_codes, dimension, name=f"{name}_{table.input}")
        found.append(_combined(layer(inputs[table.input]), inputs[table.input], table))
    return found[0] if len(found) == 1 else layers.Concatenate()(found)


def _combined(embedded, codes, table):
    if not table.is_sequence:
        return ops.squeeze(embedded, 1)
    is_there = ops.expand_dims(ops.cast(ops.not_equal(codes, 0), embedded.dtype), -1)
    total = ops.sum(embedded * is_there, axis=1)
    count = ops.maximum(ops.sum(is_there, axis=1), 1.0)
    if table.combiner == "sum":
        return total
    return total / (ops.sqrt(count) if table.combiner == "sqrtn" else count)
