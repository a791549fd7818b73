"""What is frozen stays as it is, and what a callback has trained is trained from then on."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.world import World
from tests.later import LATER

if LATER:
    import keras

    from edl_horovod.frameworks.keras import graph
    from edl_horovod.frameworks.keras.callbacks import Trainable
    from edl_horovod.frameworks.keras.step import KerasStep
    from tests.fitting import SPEC, assert_same_weights, by_fit, examples, loaded_with, steps_over
    from tests.zoo.frozen import free


def frozen_step(*, callback=None, **params):
    """A step of `frozen`, with a callback of a test in place of its own."""
    loaded = loaded_with("frozen", **params)
    if callback is not None:
        loaded.spec.create_callbacks = lambda: [callback()]
    return KerasStep(loaded, SPEC, learning_rate=None)


def epochs(step, number):
    """Train epochs of all examples with the callbacks of the step."""
    callbacks = step.callbacks(num_epochs=number, steps_per_epoch=None, per_step=False)
    for epoch in range(number):
        callbacks.begin_epoch(epoch)
        for sums in steps_over(step, examples()):
            callbacks.after_step(sums, batch=None)
        callbacks.end_epoch(epoch, {})


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "schedulefreeadamw"])
def test_two_phases_are_those_of_fit_compiled_anew(optimizer):
    step = frozen_step(frees_at=1, optimizer=optimizer)
    epochs(step, 2)
    spec = loaded_with("frozen", optimizer=optimizer).spec
    model = spec.create_model()
    for rate in (0.02, 0.005):
        optimizer = spec.create_optimizer()
        optimizer.learning_rate = rate
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)  # `fit` would not begin at the weights.
        by_fit(model)
        free(model)
    assert_same_weights(step.model.keras, model)


def test_what_is_frozen_keeps_its_bits_and_is_not_reduced(monkeypatch):
    reduced = []

    def add(sums, others, how, times):
        reduced.append((sums, others))
        return [*sums, *others]

    monkeypatch.setattr(graph, "add_over_ring", add)
    step = frozen_step()
    before = {name: variable.numpy() for name, variable in step.model_variables.items()}
    steps_over(step, examples(), World(rank=0, size=2, generation=1))
    step.step(None, wants_change=False, is_alone=False, salt=0)
    changed = {
        name
        for name, variable in step.model_variables.items()
        if not np.array_equal(variable.numpy(), before[name])
    }
    assert changed == {"head/kernel", "head/bias"}
    # Of the graph with examples, and of that without: the head's two, and the step's numbers.
    assert [(len(sums), len(others)) for sums, others in reduced] == [(2, 1), (2, 1)]


def test_what_a_model_does_not_say_is_what_it_was_when_the_value_comes_back():
    model = loaded_with("frozen").spec.create_model()
    trainable = Trainable(model)
    frozen = trainable.numpy()
    assert len(trainable.trainable_if_unfrozen()) == 6
    assert [variable.path for variable in model.trainable_variables] == ["head/kernel", "head/bias"]
    assert not trainable.refresh()
    free(model)
    assert trainable.refresh()
    assert len(model.trainable_variables) == 4
    other = loaded_with("frozen").spec.create_model()
    other_trainable = Trainable(other)
    other_trainable.assign(trainable.numpy())
    assert [variable.trainable for variable in other.variables] == [
        v.trainable for v in model.variables
    ]
    assert not other.get_layer("backbone").get_layer("norm").trainable
    other_trainable.assign(frozen)
    assert [variable.path for variable in other.trainable_variables] == ["head/kernel", "head/bias"]


def test_a_layer_in_two_others_is_as_it_was():
    shared = keras.layers.Dense(2)
    x = keras.Input((2,))
    first, second = (keras.Sequential([shared, keras.layers.Dense(2)]) for _ in range(2))
    model = keras.Model(x, second(first(x)))
    first.trainable = False
    shared.trainable = True
    trainable = Trainable(model)
    wanted = [variable.trainable for variable in model.variables]
    trainable.trainable_if_unfrozen()
    assert [variable.trainable for variable in model.variables] == wanted


def test_a_frozen_variable_is_a_group_with_the_slots_that_it_may_need():
    step = frozen_step(frees_at=1)
    grouped = {name: group for group in step.groups for name in group.names}
    kernel = next(name for name in step.model_variables if "head" not in name and "kernel" in name)
    assert len(grouped[kernel].names) == 3
    assert [len(group.names) for group in frozen_step().groups] == [3, 3, 1, 1, 1, 1, 1, 1]


def test_an_optimizer_without_slots_for_it_refuses_what_is_freed():
    step = frozen_step(frees_at=0, use_ema=True)
    with pytest.raises(UserCodeError, match=r"kernel.*Adam"):
        epochs(step, 1)


def test_a_callback_that_compiles_is_refused():
    class Compiles(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.compile("sgd", "mse")

    step = frozen_step(callback=Compiles)
    with pytest.raises(UserCodeError, match=r"SGD.*trainable"):
        epochs(step, 1)


def test_a_callback_that_begins_again_on_another_leader_freezes_nothing_anew():
    class Freezes(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.get_layer("head").trainable = False

    step = frozen_step(callback=Freezes)
    callbacks = step.callbacks(num_epochs=2, steps_per_epoch=None, per_step=False)
    state = callbacks.variables["callbacks"]  # As the first leader has left it.
    state.assign(np.frombuffer(b"[{}]".ljust(*state.shape, b"\0"), np.uint8))
    callbacks.begin_epoch(1)
    assert len(step.model.keras.trainable_variables) == 2
    step.callbacks(num_epochs=2, steps_per_epoch=None, per_step=False).begin_epoch(0)
    assert step.model.keras.trainable_variables == []
