"""Small models of the zoo that it has in both frameworks, for tests of what both do alike."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import torch

from edl_horovod.frameworks.keras.framework import FRAMEWORK as KERAS
from edl_horovod.frameworks.torch.framework import TorchFramework
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.specs import with_methods

ZOO = str(Path(__file__).parents[3] / "zoo")


class NoReducer:
    def __init__(self, *arguments):
        pass

    def abandon(self):
        pass


class Keras:
    tensor = staticmethod(tf.constant)
    example = ({"x": tf.TensorSpec((None, 4), tf.float32)}, tf.TensorSpec((None, 1), tf.float32))

    @staticmethod
    def load(name, params=None, **methods):
        KERAS.begin(slot=0, seed=4)
        loaded = load_spec(ZOO, name, params=params or {}, plain_models=KERAS.plain_models)
        return with_methods(loaded, **methods)

    @classmethod
    def make_step(cls, job, name="curve", *, params=None, example=None, **methods):
        return KERAS.step(cls.load(name, params, **methods), example or cls.example, job)

    @staticmethod
    def model_of(step):
        return step.model.keras


class Torch:
    tensor = staticmethod(torch.from_numpy)
    example = Batch({"x": torch.ones(4, 4)}, torch.ones(4, 1), 4)
    reducer = NoReducer

    @classmethod
    def make_step(cls, job, name="curve", *, params=None, example=None, **methods):
        framework = TorchFramework(None, None, cls.reducer)
        framework.begin(slot=0, seed=4)
        framework.use_precision(job.train.precision)
        plain_models = framework.plain_models
        loaded = load_spec(ZOO, f"torch_{name}", params=params or {}, plain_models=plain_models)
        return framework.step(with_methods(loaded, **methods), example or cls.example, job)

    @staticmethod
    def model_of(step):
        return step.model.runner.module


def batch_of(framework, features, labels, first=0):
    """A batch of NumPy arrays, whose examples are records of one place after the other."""
    places = np.arange(first, first + len(labels))
    tensors = {name: framework.tensor(value) for name, value in features.items()}
    return Batch(tensors, framework.tensor(labels), len(labels), None, lambda: places)


def run(step, batch, *, is_alone=True):
    return step.step(batch, wants_change=False, is_alone=is_alone, salt=0)


def values_of(variables):
    return {name: np.array(variable.numpy()) for name, variable in variables.items()}
