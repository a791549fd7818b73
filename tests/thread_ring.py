"""A ring of threads with the collectives of `base.Collectives` that sum and gather."""

import threading

import numpy as np

from edl_horovod.frameworks.base import CollectiveFailed


class Ring:
    """The collectives of threads, one for each rank."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size, timeout=60)
        self._rows = {}
        self.fails_in = ""
        """The name of a collective that fails on all ranks."""

    def of(self, rank):
        return RankCollectives(self, rank)

    def exchange(self, rank, row, name):
        self._rows[rank] = row
        self._barrier.wait()
        rows = [self._rows[other] for other in sorted(self._rows)]
        self._barrier.wait()
        if name == self.fails_in:
            raise CollectiveFailed("a rank was lost")
        return rows


class RankCollectives:
    def __init__(self, ring, rank):
        self._ring, self._rank = ring, rank
        self.num_bytes = 0
        """Bytes that this rank has sent by `exchange` to others."""

    def sum(self, values, name):
        rows = self._ring.exchange(self._rank, values, name)
        return np.sum(rows, axis=0, dtype=values.dtype)

    def gather_rows(self, row, name):
        return np.array(self._ring.exchange(self._rank, row, name))

    def exchange(self, rows, name):
        self.num_bytes += rows.nbytes - rows[self._rank].nbytes
        received = self._ring.exchange(self._rank, rows, name)
        return np.array([row[self._rank] for row in received])
