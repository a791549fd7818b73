"""A source of records that are in memory: `numbers:N` is N small regression problems."""

import numpy as np

from edl_horovod.records.source import RecordSource, SourceKind
from tests.records import example

BLOCK = 10


class _Numbers(RecordSource):
    def __init__(self, count):
        self.block_starts = np.arange(0, count, BLOCK)
        self.block_counts = np.minimum(BLOCK, count - self.block_starts)
        self.fingerprint = f"numbers {count}"
        x = np.random.default_rng(7).normal(size=(count, 4)).astype(np.float32)
        self._records = [example(id=[n], x=row, y=[row.sum() * 0.5]) for n, row in enumerate(x)]

    def read(self, ids):
        return [self._records[number] for number in ids]

    def record_bytes(self):
        return float(len(self._records[0]))

    def describe(self):
        return f"{len(self._records)} records in memory"

    def close(self):
        self._records = []


class _Kind(SourceKind):
    def open(self, request):
        return _Numbers(int(request.data.removeprefix("numbers:")))


KIND = _Kind()
