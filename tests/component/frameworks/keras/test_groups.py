"""Which variables may reach a newcomer one group after the other."""

import keras
import pytest

from edl_horovod.frameworks.keras.groups import groups_of
from edl_horovod.frameworks.keras.model import by_name


class Own(keras.optimizers.Adam):
    """Changes variables in a way that nobody else knows."""


def groups(optimizer, **dense):
    x = keras.Input((4,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(3, **dense)(x))
    model = keras.Model(x, keras.layers.Dense(300)(hidden))
    optimizer.build(model.trainable_variables)
    variables = by_name([*model.variables, *optimizer.variables])
    return groups_of(variables, model, optimizer, model.trainable_variables), variables


@pytest.mark.parametrize(
    ("optimizer", "num_slots"),
    [
        (keras.optimizers.SGD(), 0),
        (keras.optimizers.SGD(momentum=0.9), 1),
        (keras.optimizers.Adam(amsgrad=True, use_ema=True), 4),
        (keras.optimizers.RMSprop(centered=True, momentum=0.1), 3),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW()), 2),
        (keras.optimizers.Nadam(), 2),
        (keras.optimizers.Ftrl(), 2),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_variable_goes_row_by_row_with_its_slots(optimizer, num_slots):
    found, variables = groups(optimizer)
    kernel = next(group for group in found if "kernel" in group.names[0])
    assert kernel.is_by_rows
    assert len(kernel.names) == 1 + num_slots
    assert {tuple(variables[name].shape) for name in kernel.names} == {(4, 3)}
    grouped = [name for group in found for name in group.names]
    assert len(grouped) == len(set(grouped))
    rest = set(variables) - set(grouped)
    assert all(variables[name].shape.rank == 0 for name in rest)
    assert any("learning_rate" in name for name in rest)


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.Lamb(), keras.optimizers.Muon(), keras.optimizers.Adafactor()],
    ids=lambda optimizer: optimizer.name,
)
def test_with_norms_over_a_variable_it_goes_whole(optimizer):
    found, _ = groups(optimizer)
    trained = [group for group in found if "kernel" in group.names[0]]
    assert len(trained) == 2
    assert not any(group.is_by_rows for group in trained)
    assert all(len(group.names) > 1 for group in trained)


def test_a_variable_with_a_constraint_goes_whole():
    found, _ = groups(keras.optimizers.Adam(), kernel_constraint=keras.constraints.MaxNorm(1))
    by_rows = {group.names[0]: group.is_by_rows for group in found}
    assert [each for name, each in by_rows.items() if "kernel" in name] == [False, True]


def test_what_an_optimizer_of_the_users_looks_at_nobody_knows():
    assert groups(Own())[0] == []


def test_gradients_that_are_added_up_over_steps_may_be_bounded_together():
    assert groups(keras.optimizers.Adam(gradient_accumulation_steps=2))[0] == []
