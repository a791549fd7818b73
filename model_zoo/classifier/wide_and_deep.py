"""Classification of rows by a linear model and a dense network, trained together."""

from table_spec import ClassificationSpec, records_from_csv


def prepare_data_for_a_single_file(filename):
    return records_from_csv(filename)


class WideAndDeep(ClassificationSpec):
    """The linear part remembers single columns, the deep one what they mean together."""

    parts = ("deep", "wide")

    def create_model(self, hidden_units=(10,)):
        return self.network(hidden_units)
