"""Regression on a table."""

import keras
from keras import layers
from table_records import RegressionSpec, records_from_csv


def prepare_data_for_a_single_file(filename):
    return records_from_csv(filename)


class DNN(RegressionSpec):
    """A dense network."""

    def create_model(self, hidden_units=(10,)):
        inputs = self.inputs()
        x = self.encoded(inputs, width=8)
        for units in hidden_units:
            x = layers.Dense(units, activation="relu")(x)
        return keras.Model(inputs, layers.Dense(1)(x), name="dnn")
