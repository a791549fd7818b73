"""The layers of the models of tables in PyTorch, as `keras_tables.py` has them in Keras."""

import numpy as np
import table_spec
import torch
from torch import nn
from torch.nn import functional

from edl_horovod.columns.summary import text_cells


def examples(records, columns, features, *, require, encode, label_dtype, is_weighted):
    """The examples of a step's rows, made by `encode` of their cells."""
    if isinstance(records, dict):
        require({name: _array(values).dtype for name, values in records.items()})
        cells = {column.name: _array(records[column.name]) for column in columns}
    else:
        cells = text_cells(records, columns)
    found, *rest = encode(cells)
    made = {name: torch.from_numpy(np.ascontiguousarray(found[name])) for name in sorted(found)}
    return (made, *map(torch.from_numpy, rest)) if rest else made


def network(features, hidden_units, head):
    """A dense network and a linear model, added up; see `keras_tables.network`."""
    return Network(features, hidden_units, head)


class Network(nn.Module):
    def __init__(self, features, hidden_units, head):
        super().__init__()
        num_outputs, self._outputs_of = head
        self.deep = Part("deep", features.parts["deep"], 8)
        units = [self.deep.width, *hidden_units]
        self.hidden = nn.ModuleList(map(_dense, units, hidden_units))
        self.last = _output(units[-1], num_outputs)
        wide = features.parts.get("wide")
        self.wide = Part("wide", wide, num_outputs) if wide else None
        self.linear = _output((self.wide or self.deep).width, num_outputs)

    def forward(self, inputs):
        deep = self.deep(inputs)
        linear = deep if self.wide is None else self.wide(inputs)
        x = deep.clamp(-table_spec.MOST_DEVIATIONS, table_spec.MOST_DEVIATIONS)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self._outputs_of((self.last(x) + self.linear(linear)).float())


def linear(features, head):
    """A linear model; see `keras_tables.linear`."""
    return Linear(features, head)


class Linear(nn.Module):
    def __init__(self, features, head):
        super().__init__()
        num_outputs, self._outputs_of = head
        self.read = Part("deep", features.parts["deep"], num_outputs)
        self.linear = _output(self.read.width, num_outputs)

    def forward(self, inputs):
        return self._outputs_of(self.linear(self.read(inputs)).float())


class Part(nn.Module):
    """What a part of the model reads: its numbers, and an embedding for each of its tables."""

    def __init__(self, name, plan, width):
        super().__init__()
        self._numbers = f"{name}_numbers" if plan.numbers else None
        self._tables = plan.tables
        self.embeddings = nn.ModuleList(
            _embedding(table.num_codes, table.dimension or width) for table in plan.tables
        )
        self.width = plan.width + sum(each.embedding_dim for each in self.embeddings)

    def forward(self, inputs):
        found = [inputs[self._numbers]] if self._numbers else []
        for table, embedding in zip(self._tables, self.embeddings, strict=True):
            codes = inputs[table.input]
            found.append(_combined(embedding(codes), codes, table))
        return torch.cat(found, 1)


def number(mean, deviation):
    """A head that predicts a number of this mean and deviation."""
    return 1, lambda raw: {"prediction": raw.squeeze(-1) * deviation + mean}


def classes(num_classes):
    """A head that predicts one of so many classes."""
    return num_classes, lambda raw: {
        "class": raw.argmax(-1),
        "logits": raw,
        "probabilities": raw.softmax(-1),
    }


def squared_error(predicted, labels, deviation):
    return ((predicted - labels) / deviation).square().mean()


def cross_entropy(logits, labels, weights):
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return (losses if weights is None else losses * weights).mean()


def is_right(predicted, labels):
    return (predicted == labels).float()


def adam(model, lr):
    return torch.optim.Adam(model.parameters(), lr)


def _combined(embedded, codes, table):
    if not table.is_sequence:
        return embedded.squeeze(1)
    is_there = (codes != 0).to(embedded.dtype).unsqueeze(-1)
    total = (embedded * is_there).sum(1)
    count = is_there.sum(1).clamp(min=1)
    if table.combiner == "sum":
        return total
    return total / (count.sqrt() if table.combiner == "sqrtn" else count)


def _dense(num_inputs, num_outputs):
    """A dense layer that begins as those of Keras do."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _output(num_inputs, num_outputs):
    """A dense layer that begins with zeros, as those of outputs do in Keras."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _embedding(num_codes, dimension):
    """A table that begins as those of Keras do."""
    layer = nn.Embedding(num_codes, dimension)
    nn.init.uniform_(layer.weight, -0.05, 0.05)
    return layer


def _array(values):
    """A column as an array; a list of bytes as objects."""
    if isinstance(values, torch.Tensor):
        return values.numpy()
    found = np.empty(len(values), object)
    found[:] = values
    return found
