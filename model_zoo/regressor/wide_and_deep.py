"""Regression on a table by a linear model and a dense network, trained together."""

import keras
from keras import layers
from table_records import RegressionSpec, records_from_csv


def prepare_data_for_a_single_file(filename):
    return records_from_csv(filename)


class MagicalWAD(RegressionSpec):
    """The linear part remembers single columns, the deep one what they mean together."""

    def create_model(self, hidden_units=(10,)):
        inputs = self.inputs()
        wide = layers.Dense(1)(self.encoded(inputs, width=1))
        deep = self.encoded(inputs, width=8)
        for units in hidden_units:
            deep = layers.Dense(units, activation="relu")(deep)
        return keras.Model(inputs, wide + layers.Dense(1)(deep), name="wide_and_deep")
