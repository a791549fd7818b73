"""What the models of tables share, in Keras and in PyTorch: all but the layers.

Their records are the rows of a CSV file (`edl prepare`), or the columns of Parquet and its like.
"""

import csv
import logging
from functools import cached_property

import numpy as np

from edl_horovod import ElasticDLSpec, Mode
from edl_horovod.columns.clauses import read_clauses, require_columns, vocabulary_columns
from edl_horovod.columns.features import plan_features
from edl_horovod.columns.summary import TableSummary, arrays_of, require_types, summarize
from edl_horovod.errors import ConfigError
from edl_horovod.records.examples import example

log = logging.getLogger("edl_horovod.model_zoo.table_spec")

MOST_DEVIATIONS = 5.0
"""How far from the mean a dense network takes a number to be: far beyond its training data a linear
model still predicts something plausible, and a network anything."""


def records_from_csv(filename):
    """A serialized tf.Example for each row of a CSV file with a header.

    All fields stay text, because only all rows of all files tell what a column holds; an empty one
    is left out.
    """
    with open(filename, newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        for row in rows:
            if None in row:
                raise ValueError(f"line {rows.line_num} has more fields than the header has names")
            yield example({name: text.encode() for name, text in row.items() if text})


class TableSpec(ElasticDLSpec):
    """Learns one column of a table from others; a subclass says of which parts the model is.

    Columns that neither `numeric`, `categorical` nor `columns` names are left out; without all
    three, all but the label are read, each as what its rows hold.
    """

    parses_batches = True
    parts = ("deep",)
    has_classes = False

    def __init__(
        self, context=None, label="label", numeric=(), categorical=(), columns=(), class_weights=""
    ):
        super().__init__(context)
        self.label = label
        self._kinds = dict.fromkeys(numeric, "number") | dict.fromkeys(categorical, "text")
        self._clauses = read_clauses(columns, parts=self.parts)
        if columns and self._kinds:
            raise ConfigError(
                "columns says what numeric and categorical say, too.",
                received={"numeric": list(numeric), "categorical": list(categorical)},
                hint="Write all in columns (COLUMN in SQL).",
            )
        if class_weights not in ("", "auto") or (class_weights and not self.has_classes):
            raise ConfigError(
                "class_weights must be 'auto', for a classifier, or left out.",
                received={"class_weights": class_weights},
            )
        self._class_weights = class_weights
        self._has_told = set()

    def adapt(self, records, blocks, tell):
        found = summarize(
            records,
            blocks,
            label=self.label,
            has_classes=self.has_classes,
            kinds=self._kinds,
            tell=tell,
            categories=vocabulary_columns(self._clauses),
        )
        require_columns(self._clauses, found.columns)
        features = self._features_of(found)
        read = {column.name for column in features.columns}
        if left := sorted(found.columns.keys() - read):
            tell(f"not read: {', '.join(left)}")
        return {**found.to_json(), "read": sorted(read)}

    @cached_property
    def summary(self):
        """What the training data hold."""
        if self.adapted is None:
            raise ConfigError(
                f"{type(self).__name__} is made for the columns of its training data, and has seen"
                " none.",
                hint="Train it: edl train, with data of a table.",
            )
        return TableSummary.from_json(self.adapted)

    @cached_property
    def features(self):
        """How the model's features are made."""
        return self._features_of(self.summary)

    def create_dataset(self, dataset, mode):
        columns = self.features.columns
        if mode != Mode.PREDICTION:
            columns = (*columns, self.summary.label)
        return self.layers.examples(
            dataset,
            columns,
            self.features,
            require=lambda dtypes: require_types(dtypes, columns),
            encode=lambda cells: self._encode(cells, columns, mode),
            label_dtype=None if mode == Mode.PREDICTION else self.label_dtype,
            is_weighted=self._is_weighted(mode),
        )

    def create_optimizer(self, model=None, lr=0.003):
        return self.layers.adam(model, lr)

    def network(self, hidden_units):
        """A dense network and a linear model, added up."""
        return self.layers.network(self.features, _units_of(hidden_units), self.head())

    @property
    def layers(self):
        """The layers of the framework that the job computes with."""
        # Here alone, so that a job of one framework does not import the other.
        if self.framework == "torch":
            import torch_tables as layers
        else:
            import keras_tables as layers
        return layers

    def _features_of(self, found):
        columns = found.columns
        if self._kinds:
            columns = {name: column for name, column in columns.items() if name in self._kinds}
        return plan_features(columns, self._clauses, parts=self.parts)

    def _is_weighted(self, mode):
        return bool(self._class_weights) and mode == Mode.TRAINING

    def _encode(self, cells, columns, mode):
        """Features by name, then the labels and their weights where they are asked for."""
        arrays = arrays_of(cells, columns)
        found = [self.features.encode(arrays)]
        self._tell_news(found[0], arrays)
        if mode != Mode.PREDICTION:
            found.append(self.labels(arrays[self.label]))
        if self._is_weighted(mode):
            found.append(self.summary.classes.weights()[found[1]])
        return found

    def _tell_news(self, encoded, arrays):
        """Say once of a column that it has what the training did not have."""
        for name, value in self.features.first_unknown(encoded, arrays).items():
            if name not in self._has_told:
                self._has_told.add(name)
                log.warning(
                    "the column %r has %r, which the training did not have: it counts as unknown,"
                    " as others like it do",
                    name,
                    value,
                )
        for name in self.features.newly_empty(arrays):
            if name not in self._has_told:
                self._has_told.add(name)
                log.warning(
                    "the column %r has empty cells, which the training did not have: they count as"
                    " its mean, %.6g",
                    name,
                    self.summary.columns[name].mean,
                )


class RegressionSpec(TableSpec):
    """Predicts a number; the loss is in deviations of the label, so that its unit is no matter."""

    label_dtype = np.float32

    def labels(self, cells):
        return cells.astype(np.float32)

    def head(self):
        label = self.summary.label
        return self.layers.number(label.mean, label.deviation)

    def create_loss(self, outputs, labels):
        deviation = self.summary.label.deviation
        return self.layers.squared_error(outputs["prediction"], labels, deviation)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": abs(outputs["prediction"] - labels)}


class ClassificationSpec(TableSpec):
    """Predicts one of the classes that the label has."""

    label_dtype = np.int64
    has_classes = True

    def labels(self, cells):
        return self.summary.classes.encode(cells)

    def head(self):
        return self.layers.classes(len(self.summary.classes.values))

    def create_loss(self, outputs, labels, sample_weight=None):
        return self.layers.cross_entropy(outputs["logits"], labels, sample_weight)

    def create_metrics(self, outputs, labels):
        return {"accuracy": self.layers.is_right(outputs["class"], labels)}


class LinearSpec:
    """A linear model: one weight for each number, and one for each category and output.

    It is a part of a `TableSpec`, and none itself: the zoo lists no model that has no label.
    """

    def create_model(self):
        return self.layers.linear(self.features, self.head())


def _units_of(hidden_units):
    """The sizes of hidden layers, checked."""
    units = list(hidden_units) if isinstance(hidden_units, list | tuple) else [hidden_units]
    if any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in units):
        raise ConfigError(
            "hidden_units must be whole numbers from 1 on.",
            received={"hidden_units": hidden_units},
            hint="Write the size of each hidden layer, as in [64, 32].",
        )
    return units
