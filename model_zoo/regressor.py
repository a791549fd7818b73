"""Regression on a table, in Keras and in PyTorch."""

from table_spec import LinearSpec, RegressionSpec, records_from_csv


def prepare_data_for_a_single_file(filename):
    return records_from_csv(filename)


class DNN(RegressionSpec):
    """A dense network."""

    def create_model(self, hidden_units=(10,)):
        return self.network(hidden_units)


class Linear(LinearSpec, RegressionSpec):
    """A linear model."""
