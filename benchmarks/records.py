"""Write the same records as RecordIO and as TFRecord: 784 floats and a label each."""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.common import side_parser, write_numbers
from edl_horovod.records.sources.recordio import Writer

NUM_FILES = 8
NUM_DISTINCT = 2048
"""Making an example is slow, so the files repeat so many."""


def main() -> int:
    """Write the files; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--num-records", type=int, required=True)
    args = parser.parse_args()
    distinct = _examples(min(NUM_DISTINCT, args.num_records))
    num_records = write_files(args.data, distinct, args.num_records, num_files=NUM_FILES)
    write_numbers(args.place, {"num_records": num_records})
    return 0


def write_files(folder: Path, distinct: list[bytes], num_records: int, *, num_files: int) -> int:
    """Write the same records as RecordIO and as TFRecord; returns how many.

    Args:
        folder: Made for the files.
        distinct: What the files repeat, in order.
        num_records: At most so many: all files have the same number.
        num_files: Of each kind.
    """
    folder.mkdir()
    per_file = num_records // num_files
    for number in range(num_files):
        places = range(number * per_file, (number + 1) * per_file)
        _write(folder / f"part-{number:02d}", [distinct[n % len(distinct)] for n in places])
    return per_file * num_files


def _write(stem: Path, records: list[bytes]) -> None:
    with Writer(stem.with_suffix(".recordio")) as writer:
        for record in records:
            writer.write(record)
    with tf.io.TFRecordWriter(str(stem.with_suffix(".tfrecord"))) as writer:
        for record in records:
            writer.write(record)


def _examples(count: int) -> list[bytes]:
    random = np.random.default_rng(0)
    return [_example(random) for _ in range(count)]


def _example(random: np.random.Generator) -> bytes:
    """Pixels as a photograph has them: whole numbers from 0 to 255, stored as floats."""
    pixels = random.integers(0, 256, 28 * 28).astype(np.float32)
    label = int(random.integers(0, 10))
    feature = {
        "image": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    record: bytes = example.SerializeToString()
    return record


if __name__ == "__main__":
    sys.exit(main())
