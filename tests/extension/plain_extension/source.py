"""A source of records: `counting:N` is N records, each a number and its double."""

import numpy as np

from edl_horovod.records.source import RecordSource, SourceKind

BLOCK = 10


class _Counting(RecordSource):
    def __init__(self, count):
        self.block_starts = np.arange(0, count, BLOCK)
        self.block_counts = np.minimum(BLOCK, count - self.block_starts)
        self.fingerprint = f"counting {count}"
        self._count = count

    def read(self, ids):
        return [np.float32([number % 10, 2 * (number % 10)]).tobytes() for number in ids]

    def record_bytes(self):
        return 8.0

    def describe(self):
        return f"{self._count} numbers"

    def close(self):
        pass


class _Kind(SourceKind):
    def open(self, request):
        return _Counting(int(request.data.removeprefix("counting:")))


KIND = _Kind()
