"""Write the pictures that the models of `benchmarks.models.network` train on."""

import sys

import numpy as np
import tensorflow as tf

from benchmarks.common import side_parser, write_numbers
from benchmarks.models.network import NUM_CLASSES, PICTURE_SHAPE
from benchmarks.records import write_files

NUM_FILES = 4
NUM_DISTINCT = 512
"""Random pictures do not shrink, and nobody looks at them: the files repeat so many."""


def main() -> int:
    """Write the files; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--num-records", type=int, required=True)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    distinct = [_example(random) for _ in range(min(NUM_DISTINCT, args.num_records))]
    num_records = write_files(args.data, distinct, args.num_records, num_files=NUM_FILES)
    write_numbers(args.place, {"num_records": num_records})
    return 0


def _example(random: np.random.Generator) -> bytes:
    pixels = random.integers(0, 256, PICTURE_SHAPE, np.uint8).tobytes()
    label = int(random.integers(0, NUM_CLASSES))
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    record: bytes = tf.train.Example(
        features=tf.train.Features(feature=feature)
    ).SerializeToString()
    return record


if __name__ == "__main__":
    sys.exit(main())
