"""Write the same records as RecordIO and as TFRecord: 784 floats and a label each.

The files that all benchmarks read are what both sides make by default: RecordIO with snappy,
TFRecord without compression. Files of another codec lie beside them.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.common import data_with, side_parser, write_numbers
from edl_horovod.records.sources.recordio import Codec, Writer

NUM_FILES = 8
NUM_DISTINCT = 2048
"""Making an example is slow, so the files repeat so many."""


def main() -> int:
    """Write the files; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--num-records", type=int, required=True)
    parser.add_argument("--codec", choices=("none", "gzip"), help="write files of this one")
    args = parser.parse_args()
    distinct = _examples(min(NUM_DISTINCT, args.num_records))
    folder = data_with(args.codec, args.data) if args.codec else args.data
    codec = Codec[(args.codec or "snappy").upper()]
    num_records = write_files(folder, distinct, args.num_records, num_files=NUM_FILES, codec=codec)
    write_numbers(args.place, {"num_records": num_records})
    return 0


def write_files(
    folder: Path,
    distinct: list[bytes],
    num_records: int,
    *,
    num_files: int,
    codec: Codec = Codec.SNAPPY,
) -> int:
    """Write the same records as RecordIO and as TFRecord; returns how many.

    Args:
        folder: Made for the files.
        distinct: What the files repeat, in order.
        num_records: At most so many: all files have the same number.
        num_files: Of each kind.
        codec: Of the RecordIO files. TFRecord files are compressed where it is gzip, which is the
            one that both know.
    """
    folder.mkdir()
    per_file = num_records // num_files
    for number in range(num_files):
        places = range(number * per_file, (number + 1) * per_file)
        _write(folder / f"part-{number:02d}", [distinct[n % len(distinct)] for n in places], codec)
    return per_file * num_files


def _write(stem: Path, records: list[bytes], codec: Codec) -> None:
    with Writer(stem.with_suffix(".recordio"), codec=codec) as writer:
        for record in records:
            writer.write(record)
    compression = "GZIP" if codec is Codec.GZIP else ""
    with tf.io.TFRecordWriter(str(stem.with_suffix(".tfrecord")), compression) as writer:
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
