"""Keras models whose losses divide by something else than the number of examples."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from edl_horovod import ElasticDLSpec

WORDS, TAGS, STEPS = 7, 4, 6


def optimizer():
    """One that does not square gradients: `fit` does that for each use of an embedding's row."""
    return keras.optimizers.SGD(0.5, momentum=0.9)


def tagger(*, mask_zero=True, is_recurrent=False, **options):
    ids = keras.Input((STEPS,), dtype="int32", name="ids")
    rows = keras.layers.Embedding(WORDS, 5, mask_zero=mask_zero)(ids)
    if is_recurrent:
        hidden = keras.layers.GRU(6, return_sequences=True, **options)(rows)
    else:
        # It passes the mask on, too, and its graph is made in a tenth of the time.
        hidden = keras.layers.Dense(6, "tanh", **options)(rows)
    return ids, hidden, keras.layers.Dense(TAGS, activation="softmax", name="tags")(hidden)


def compiled(loss, *, mask_zero=False, **options):
    ids, _, tags = tagger(mask_zero=mask_zero, **options)
    model = keras.Model(ids, tags)
    metrics = ["accuracy"] if mask_zero else []
    model.compile(optimizer(), loss, metrics=metrics)
    return model


def masked():
    return compiled("sparse_categorical_crossentropy", mask_zero=True, kernel_regularizer="l2")


def ignoring():
    return compiled(keras.losses.SparseCategoricalCrossentropy(ignore_class=0))


def ignoring_masked():
    return compiled(keras.losses.SparseCategoricalCrossentropy(ignore_class=2), mask_zero=True)


def weighted():
    return compiled(keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight"))


def weighted_steps(labels, outputs):
    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
    return losses, ops.cast(labels, "float32")


def divided(labels, outputs):
    losses, weights = weighted_steps(labels, outputs)
    return ops.sum(losses * weights) / ops.sum(weights)


def bounded(labels, outputs):
    losses, weights = weighted_steps(labels, outputs)
    return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def chosen(labels, outputs):
    losses, weights = weighted_steps(labels, outputs)
    return tf.reduce_mean(tf.boolean_mask(losses, weights > 1))


def own_loss(function):
    """Its `compute_loss`; a compiled function of this kind would be averaged by Keras."""

    class OwnLoss(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return function(y, y_pred) + sum(self.losses)

    def make():
        ids, _, tags = tagger(mask_zero=False, kernel_regularizer="l2")
        model = OwnLoss(ids, tags)
        model.compile(optimizer())
        return model

    return make


def regularized():
    """A mask, and a mean over the examples that a layer adds."""
    return compiled("sparse_categorical_crossentropy", mask_zero=True, activity_regularizer="l2")


def two_masks(*, is_recurrent=False):
    """Two losses with other masks, and one of all examples."""
    ids, hidden, tags = tagger(is_recurrent=is_recurrent)
    others = keras.layers.Dense(TAGS, activation="softmax", name="others")(hidden)
    summary = keras.layers.GRU(4)(hidden) if is_recurrent else ops.mean(hidden, 1)
    number = keras.layers.Dense(1, name="number")(summary)
    model = keras.Model(ids, [tags, others, number])
    ignoring = keras.losses.SparseCategoricalCrossentropy(ignore_class=2)
    losses = ["sparse_categorical_crossentropy", ignoring, "mse"]
    model.compile(optimizer(), losses, loss_weights=[1.0, 0.5, 0.1])
    return model


def recurrent():
    """Masks that layers with a loop over the steps use, pass on and end."""
    return two_masks(is_recurrent=True)


MODELS = {
    "masked": masked,
    "regularized": regularized,
    "ignoring": ignoring,
    "ignoring_masked": ignoring_masked,
    "weighted": weighted,
    "divided": own_loss(divided),
    "bounded": own_loss(bounded),
    "chosen": own_loss(chosen),
    "two_masks": two_masks,
    "recurrent": recurrent,
}


def data(kind, num_examples):
    """Ids, of which 0 ends a sentence, tags, and weights of examples for one that takes them."""
    random = np.random.default_rng(4)
    ids = random.integers(1, WORDS, (num_examples, STEPS)).astype(np.int32)
    tags = (ids * 3 % TAGS + random.integers(0, 2, ids.shape)).astype(np.int32) % TAGS
    lengths = random.integers(1, STEPS + 1, num_examples)
    lengths[: num_examples // 3 : 2] = 0  # All of some ranks, in some steps.
    is_word = np.arange(STEPS) < lengths[:, None]
    features, labels = np.where(is_word, ids, 0), np.where(is_word, tags, 0)
    if kind in ("two_masks", "recurrent"):
        numbers = np.sin(ids.sum(1, keepdims=True)).astype(np.float32)
        return features, [labels, labels[:, ::-1].copy(), numbers]
    if kind == "weighted":
        return features, labels, is_word * lengths[:, None].astype(np.float32)
    return features, labels


class MaskedSpec(ElasticDLSpec):
    """Its model brings all; or its `create_loss` gives a pair."""

    def create_model(self, kind):
        return MODELS[kind]()

    def create_dataset(self, dataset, mode):
        return dataset


class PairSpec(ElasticDLSpec):
    """Its `create_loss` gives a pair."""

    def create_model(self):
        ids, _, tags = tagger(mask_zero=False, kernel_regularizer="l2")
        return keras.Model(ids, tags)

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs, labels):
        losses, weights = weighted_steps(labels, outputs)
        return tf.reduce_sum(losses * weights), tf.reduce_sum(weights)

    def create_optimizer(self):
        return optimizer()
