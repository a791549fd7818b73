"""Train a model of the zoo by our step and by Keras' own `fit`: same examples, same order."""

import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.frameworks.values import Batch
from edl_horovod.frameworks.world import World
from edl_horovod.models.zoo import load_spec
from tests.arrays import assert_close
from tests.zoo import own
from tests.zoo.fitted import NUM_FEATURES

ZOO = str(Path(__file__).parent / "zoo")
ALONE = World(rank=0, size=1, generation=1)
BATCH, STEPS = 16, 50
SPEC = (tf.TensorSpec((None, NUM_FEATURES), tf.float32), tf.TensorSpec((None, 1), tf.float32))


def loaded_with(model_def, **params):
    """The model of a zoo's file, whose weights begin as they always do."""
    keras.utils.set_random_seed(1)
    return load_spec(ZOO, model_def, params=params)


def examples(num_steps=STEPS):
    random = np.random.default_rng(2)
    features = random.normal(size=(BATCH * num_steps, NUM_FEATURES)).astype(np.float32)
    return features, np.sin(features.sum(1, keepdims=True))


def own_data(kind):
    """Examples for a model of `own.MODELS`."""
    features, labels = examples()
    as_its_outputs = own.MODELS[kind]
    if kind == "weighted":
        return features, labels, np.abs(features[:, 0])
    return features, as_its_outputs(labels, labels**2) if as_its_outputs else labels


def specs_of(data):
    """What a batch of some examples looks like."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), data
    )


def steps_over(step, data, world=ALONE, part_of=None):
    """Run our step over all examples, each rank on its part of each batch; gives its numbers.

    `part_of`, asked before each step, gives a rank's place among those that have examples in it, or
    None.
    """
    num_examples = len(tf.nest.flatten(data)[0])
    rows = []
    for start in range(0, num_examples, BATCH):
        part = part_of() if part_of is not None else world
        batch = None
        if part is not None:
            mine = np.arange(start, min(start + BATCH, num_examples))[part.rank :: part.size]
            its = tf.nest.map_structure(lambda array, mine=mine: tf.constant(array[mine]), data)
            batch = Batch(its[0], its[1], len(mine), *its[2:])
        sums = step.step(batch, wants_change=False, is_alone=world.is_alone, salt=0)
        rows.append(sums)
    return rows


def by_us(loaded, world=ALONE, data=None, **options):
    """Train by our step, alone or as a rank of a ring.

    Returns:
        The step, and what each step gave.
    """
    data = examples() if data is None else data
    step = KerasStep(loaded, specs_of(data), learning_rate=None, **options)
    sums = steps_over(step, data, world)
    step.finalize()
    return step, sums


def by_fit(model, data=None, **settings):
    """Train a compiled model by its own `fit`; gives the logs of the epoch."""
    features, labels, *weights = examples() if data is None else data
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist for variables")
        history = model.fit(
            features,
            labels,
            sample_weight=weights[0] if weights else None,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
            **settings,
        )
    return {name: values[-1] for name, values in history.history.items()}


def assert_same_weights(ours, theirs):
    assert_close(ours.get_weights(), theirs.get_weights(), rtol=1e-5, atol=1e-6)
