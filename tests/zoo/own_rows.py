"""Records by number without files: what `tests.records.write_records` writes."""

import numpy as np

NUM_RECORDS = 100


class Rows:
    """Dicts of id, x and y."""

    def __init__(self):
        self._x = np.random.default_rng(7).normal(size=(NUM_RECORDS, 4)).astype(np.float32)

    def __len__(self):
        return NUM_RECORDS

    def __getitem__(self, number):
        x = self._x[number]
        return {"id": number, "x": x, "y": np.float32(x.sum() * 0.5)}
