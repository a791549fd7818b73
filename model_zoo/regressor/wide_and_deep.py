"""Regression on a table by a linear model and a dense network, trained together."""

from table_spec import RegressionSpec, records_from_csv


def prepare_data_for_a_single_file(filename):
    return records_from_csv(filename)


class MagicalWAD(RegressionSpec):
    """The linear part remembers single columns, the deep one what they mean together."""

    parts = ("deep", "wide")

    def create_model(self, hidden_units=(10,)):
        return self.network(hidden_units)
