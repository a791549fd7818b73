"""Records for tests: each knows its number, and carries a small regression problem."""

import itertools

import numpy as np

from edl_horovod.records.chunks import Codec
from edl_horovod.records.sources.recordio import Writer

NUMBERED_BYTES = 100_000
"""Of a numbered record."""

FIELD_LENGTH_DELIMITED, BYTES_LIST, FLOAT_LIST, INT64_LIST = 2, 1, 2, 3


def _field(number, payload):
    return _varint(number << 3 | FIELD_LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def example(**features):
    """A serialized tf.Example, made without importing TensorFlow."""
    entries = b""
    for name, values in sorted(features.items()):
        values = values if isinstance(values, list) else np.asarray(values)
        if isinstance(values[0], bytes):
            feature = _field(BYTES_LIST, b"".join(_field(1, value) for value in values))
        elif np.asarray(values).dtype.kind == "i":
            feature = _field(INT64_LIST, _field(1, b"".join(_varint(int(v)) for v in values)))
        else:
            feature = _field(FLOAT_LIST, _field(1, np.asarray(values, "<f4").tobytes()))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def write_records(folder, count, *, num_files=2, chunk_bytes=2048):
    """Write `count` records into some files; returns the glob that finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    bounds = np.linspace(0, count, num_files + 1).astype(int)
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        path = folder / f"part-{number}.recordio"
        with Writer(path, codec=Codec.NONE, chunk_bytes=chunk_bytes) as writer:
            for record_id in range(start, stop):
                x = random.normal(size=4).astype(np.float32)
                writer.write(example(id=[record_id], x=x, y=[np.float32(x.sum() * 0.5)]))
    return str(folder / "*.recordio")


def write_numbered(path, numbers):
    """Write a file of records that repeat their numbers over and over, three in a chunk."""
    with Writer(path, codec=Codec.NONE, chunk_bytes=3 * NUMBERED_BYTES) as writer:
        for number in numbers:
            writer.write(int(number).to_bytes(4, "little") * (NUMBERED_BYTES // 4))
