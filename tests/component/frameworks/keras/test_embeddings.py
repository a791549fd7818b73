"""A step writes the rows that its examples have into the table, and never copies it."""

import numpy as np

from tests.later import LATER

if LATER:
    from tests.fitting import assert_same_weights, by_fit, by_us, loaded_with, steps_over


def data():
    rows = np.random.default_rng(3).integers(0, 50, (96, 1)).astype(np.int32)
    return rows, rows.astype(np.float32) / 50


def place(variable):
    """Where the values lie; the reading that tells is over when this returns."""
    return variable.value.read_value().numpy().__array_interface__["data"][0]


def test_the_table_stays_where_it_is():
    step, _ = by_us(loaded_with("embedded"), data=data())
    table = step.model.keras.get_layer("table").embeddings
    # What is read is not kept: the table would be copied before it changes.
    before, values = place(table), table.numpy().copy()
    steps_over(step, data())
    assert place(table) == before
    changed = np.flatnonzero((table.numpy() != values).any(1))
    assert 0 < len(changed) <= 50


def test_it_learns_as_in_fit():
    step, _ = by_us(loaded_with("embedded"), data=data())
    spec = loaded_with("embedded").spec
    model = spec.create_model()
    model.compile(spec.create_optimizer(), "mse")
    by_fit(model, data())
    assert_same_weights(step.model.keras, model)
