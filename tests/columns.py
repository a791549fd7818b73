"""What the tests of column formats ask a source for."""

import numpy as np

from edl_horovod.config.schema import DataConfig
from edl_horovod.records.columns import Ragged
from edl_horovod.records.job_data import open_source


def plain(column):
    """The values of a column as Python's own: lists of lists where records differ in length."""
    if isinstance(column, Ragged):
        return [part.tolist() for part in np.split(column.values, column.ends[:-1])]
    return column.tolist()


def read_columns(data, ids=None, **settings):
    """The columns of some records, or of all, by name."""
    with open_source(str(data), DataConfig(**settings)) as source:
        columns = source.read(range(len(source)) if ids is None else ids)
        names = [column.name for column in source.layout.columns]
        return {name: plain(column) for name, column in zip(names, columns, strict=True)}
