"""Classification of the rows of a table, in Keras and in PyTorch."""

from table_spec import ClassificationSpec, LinearSpec, records_from_csv


def prepare_data_for_a_single_file(filename):
    return records_from_csv(filename)


class DNN(ClassificationSpec):
    """A dense network."""

    def create_model(self, hidden_units=(10,)):
        return self.network(hidden_units)


class Logistic(LinearSpec, ClassificationSpec):
    """A logistic model: linear, with a softmax over the classes."""
