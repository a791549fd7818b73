"""A ring trains as Keras' own `fit` does on the same examples in the same order."""

import numpy as np
import pytest

from tests.fitting import BATCH, STEPS, assert_same_weights, by_fit, by_us, loaded_with, own_data
from tests.parallel.agreement import assert_same_everywhere
from tests.specs import OPTIMIZERS
from tests.zoo import own, texts


@pytest.mark.long(after=1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_an_optimizer_does_what_it_does_in_fit(world, optimizer):
    step, _ = by_us(loaded_with("fitted", optimizer=optimizer), world)
    assert_same_everywhere(step.model.keras.get_weights())
    if world.is_leader:
        spec = loaded_with("fitted", optimizer=optimizer).spec
        model = spec.create_model()
        model.compile(optimizer=spec.create_optimizer(), loss="mse")
        by_fit(model)
        assert_same_weights(step.model.keras, model)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("kind", own.MODELS)
def test_a_model_that_brings_its_parts_trains_and_is_measured_as_in_fit(world, kind):
    data = own_data(kind)
    step, sums = by_us(loaded_with("own.OwnSpec", kind=kind), world, data)
    assert_same_everywhere(step.model.keras.get_weights())
    if world.is_leader:
        loaded_with("own")
        model = getattr(own, kind)()
        logs = by_fit(model, data)
        assert_same_weights(step.model.keras, model)
        # Of this one epoch, what all steps have counted.
        counted = np.sum([of_step.metric_sums for of_step in sums], 0)
        count = sum(of_step.num_examples for of_step in sums)
        for name, value in step._graph.metric_values(counted, count).items():
            np.testing.assert_allclose(value, logs[name], rtol=1e-5, err_msg=name)


@pytest.mark.long
def test_layers_that_were_adapted_train_as_in_fit(world):
    data = texts.rows(BATCH * STEPS)
    layers = {name: make() for name, make in texts.UNADAPTED.items()}
    for name, layer in layers.items():
        layer.adapt(data[0][name])
    loaded = loaded_with("texts.TextsSpec")
    loaded.spec.adapted = {
        "text": {"vocabulary": layers["text"].get_vocabulary()},
        "city": {"vocabulary": layers["city"].get_vocabulary()},
        "size": {
            "mean": layers["size"].mean.numpy()[0].tolist(),
            "variance": layers["size"].variance.numpy()[0].tolist(),
        },
    }
    step, _ = by_us(loaded, world, data)
    assert_same_everywhere(step.model.keras.get_weights())
    if world.is_leader:
        spec = loaded_with("texts.TextsSpec").spec
        model = texts.model_of(layers)
        model.compile(spec.create_optimizer(), "mse")
        by_fit(model, data)
        ours, expected = step.model.keras.trainable_variables, model.trainable_variables
        for variable, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(variable, other, rtol=1e-5, atol=1e-6)
