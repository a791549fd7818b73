"""Records by number without files: what `tests.records.write_records` writes."""

import time

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


def stream():
    """The same from the begin alone."""
    rows = Rows()
    for number in range(NUM_RECORDS):
        yield rows[number]


def slow_stream():
    """The same, for so long that a test can do something meanwhile."""
    for row in stream():
        time.sleep(1)
        yield row


def large_stream():
    """Random bytes, 10 MB of them."""
    random = np.random.default_rng(1)
    for _ in range(NUM_RECORDS):
        yield {"x": np.zeros(4, np.float32), "y": np.float32(0), "more": random.bytes(100_000)}


def examples():
    """The same as examples, made by tf.data."""
    import tensorflow as tf

    spec = {"id": tf.TensorSpec((), tf.int64), "x": tf.TensorSpec((4,)), "y": tf.TensorSpec(())}
    dataset = tf.data.Dataset.from_generator(stream, output_signature=spec)
    return dataset.map(lambda row: ({"x": row["x"]}, row["y"][tf.newaxis]))
