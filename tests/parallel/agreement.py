"""What ranks must have in common, to the last bit."""

import hashlib

import numpy as np

from edl_horovod.frameworks.keras.collectives import KerasCollectives


def assert_same_everywhere(values):
    """Arrays of this rank have the same bits on all others; all ranks call it."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    number = int.from_bytes(digest.digest()[:7], "little")
    assert len(set(KerasCollectives().gather_rows([number], "test.digest")[:, 0])) == 1
