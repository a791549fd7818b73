"""What a model's own `fit` makes of the same examples in the same order."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.zoo.fitted import NUM_FEATURES

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS = 16, 50
SPEC = (tf.TensorSpec((None, NUM_FEATURES), tf.float32), tf.TensorSpec((None, 1), tf.float32))


def loaded_with(optimizer):
    keras.utils.set_random_seed(1)
    return load_spec(ZOO, "fitted", params={"optimizer": optimizer})


def examples():
    random = np.random.default_rng(2)
    features = random.normal(size=(BATCH * STEPS, NUM_FEATURES)).astype(np.float32)
    return features, np.sin(features.sum(1, keepdims=True))


def by_us(optimizer):
    features, labels = examples()
    step = KerasStep(loaded_with(optimizer), SPEC, learning_rate=None)
    for start in range(0, len(features), BATCH):
        part = slice(start, start + BATCH)
        batch = Batch(
            features=tf.constant(features[part]),
            labels=tf.constant(labels[part]),
            num_examples=BATCH,
        )
        step.step(batch, wants_change=False, is_alone=True, salt=0)
    step.finalize()
    return step.model.keras.get_weights()


def by_fit(optimizer):
    spec = loaded_with(optimizer).spec
    model = spec.create_model()
    model.compile(optimizer=spec.create_optimizer(), loss="mse")
    model.fit(*examples(), batch_size=BATCH, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"use_ema": True, "ema_momentum": 0.9}),
        ("SGD", {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 7}),
        ("AdamW", {"weight_decay": 0.1, "clipnorm": 0.5}),
        ("SGD", {"gradient_accumulation_steps": 5}),
        ("SGD", {"loss_scale_factor": 128.0}),
    ],
)
def test_an_optimizer_does_what_it_does_in_fit(name, settings):
    optimizer = {"class_name": name, "config": {"learning_rate": 0.05, **settings}}
    for ours, theirs in zip(by_us(optimizer), by_fit(optimizer), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
