"""Shards of MDS that tests write."""

import json

import numpy as np


def shard(samples, encodings, sizes, names):
    """A shard by the description of the format."""
    header = {"column_encodings": encodings, "column_names": names, "column_sizes": sizes}
    header |= {"compression": None, "format": "mds", "hashes": [], "size_limit": 1, "version": 2}
    text = json.dumps(header, sort_keys=True).encode()
    begin = 4 + 4 * (len(samples) + 1) + len(text)
    bounds = begin + np.cumsum([0, *map(len, samples)])
    return (
        np.uint32(len(samples)).tobytes()
        + bounds.astype("<u4").tobytes()
        + text
        + b"".join(samples)
    )
