"""Models beside our step that `fit` trains on the same examples, and the comparison of both."""

import keras

from tests.fitting import assert_same_weights, by_fit, loaded_with
from tests.zoo import own


def compiled(model_def, **params):
    """A model of the zoo, compiled with the optimizer of its spec."""
    spec = loaded_with(model_def, **params).spec
    model = spec.create_model()
    model.compile(spec.create_optimizer(), "mse")
    return model


def own_model(kind):
    """A model of `own` that is compiled already, with the weights that a step begins with."""
    keras.utils.set_random_seed(1)
    return getattr(own, kind)()


def assert_trained_as_in_fit(step, model, data=None, **settings):
    """Compare the weights; returns the logs of `fit`."""
    logs = by_fit(model, data, **settings)
    assert_same_weights(step.model.keras, model)
    return logs
