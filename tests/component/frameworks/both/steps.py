"""Small models of the zoo that it has in both frameworks, for tests of what both do alike."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import torch

from edl_horovod.frameworks.keras.framework import FRAMEWORK as KERAS
from edl_horovod.frameworks.torch.framework import TorchFramework
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.specs import with_methods
from tests.torch_alone import NoReducer

ZOO = str(Path(__file__).parents[3] / "zoo")


class Keras:
    rate = None
    """The rate of plain SGD in place of the model's own optimizer."""
    tensor = staticmethod(tf.constant)
    example = ({"x": tf.TensorSpec((None, 4), tf.float32)}, tf.TensorSpec((None, 1), tf.float32))

    @staticmethod
    def load(name, params=None, **methods):
        KERAS.begin(slot=0, seed=4)
        loaded = load_spec(ZOO, name, params=params or {}, plain_models=KERAS.plain_models)
        return with_methods(loaded, **methods)

    @classmethod
    def make_step(cls, job, name="curve", *, params=None, example=None, **methods):
        if cls.rate is not None:
            methods.setdefault("create_optimizer", lambda: keras.optimizers.SGD(cls.rate))
        return KERAS.step(cls.load(name, params, **methods), example or cls.example, job)

    @staticmethod
    def model_of(step):
        return step.model.keras

    @staticmethod
    def weights(model):
        return model.get_weights()


class Torch:
    rate = None
    tensor = staticmethod(torch.from_numpy)
    example = Batch({"x": torch.ones(4, 4)}, torch.ones(4, 1), 4)
    reducer = staticmethod(lambda *_: NoReducer())

    @classmethod
    def make_step(cls, job, name="curve", *, params=None, example=None, **methods):
        framework = TorchFramework(None, None, cls.reducer)
        framework.begin(slot=0, seed=4)
        framework.use_precision(job.train.precision)
        if cls.rate is not None:
            methods.setdefault(
                "create_optimizer", lambda model: torch.optim.SGD(model.parameters(), cls.rate)
            )
        plain_models = framework.plain_models
        loaded = load_spec(ZOO, f"torch_{name}", params=params or {}, plain_models=plain_models)
        return framework.step(with_methods(loaded, **methods), example or cls.example, job)

    @staticmethod
    def model_of(step):
        return step.model.runner.module

    @staticmethod
    def weights(model):
        return list(model.state_dict().values())


def assert_same_weights(framework, step, model):
    """Compare the model of a step with one that a loop by hand has trained."""
    weights = framework.weights(framework.model_of(step)), framework.weights(model)
    for ours, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, expected, *framework.tolerance)


def batch_of(framework, features, labels, first=0):
    """A batch of NumPy arrays, whose examples are records of one place after the other."""
    places = np.arange(first, first + len(labels))
    tensors = {name: framework.tensor(value) for name, value in features.items()}
    return Batch(tensors, framework.tensor(labels), len(labels), None, lambda: places)


def run(step, batch, *, is_alone=True):
    return step.step(batch, wants_change=False, is_alone=is_alone, salt=0)


def values_of(variables):
    return {name: np.array(variable.numpy()) for name, variable in variables.items()}


def trained_values(step):
    return values_of({name: step.variables[name] for name in step.trained})
