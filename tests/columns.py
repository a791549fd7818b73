"""What the tests of column formats ask a source for."""

import numpy as np

from edl_horovod.config.schema import DataConfig
from edl_horovod.records.columns import Ragged
from edl_horovod.records.job_data import open_source


def plain(values):
    """The values of a column as Python's own: lists of lists where records differ in length."""
    if isinstance(values, Ragged):
        return [part.tolist() for part in np.split(values.values, values.ends[:-1])]
    return values.tolist()


def read_columns(data, ids=None, **settings):
    """The columns of some records, or of all, by name."""
    with open_source(str(data), DataConfig(**settings)) as source:
        found = source.read(range(len(source)) if ids is None else ids)
        names = [column.name for column in source.layout.columns]
        return {name: plain(values) for name, values in zip(names, found, strict=True)}
