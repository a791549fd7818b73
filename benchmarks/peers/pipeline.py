"""Input pipelines of plain tf.data, over the same records, parser, shuffle and batch."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.common import RECORDIO_PATTERN, TFRECORD_PATTERN
from benchmarks.models.cnn import SHUFFLE_RECORDS, CnnSpec, parse_batch, parse_features, parse_one
from edl_horovod.records.reader import Reader
from edl_horovod.spec import Mode


def tfrecord_files(data: Path) -> list[str]:
    """The TFRecord files, sorted."""
    return sorted(str(path) for path in data.glob(TFRECORD_PATTERN))


def training_dataset(
    data: Path, batch_size: int, *, rank: int = 0, size: int = 1, spec: Any = None
) -> Any:
    """Endless batches of TFRecord files; the files are sharded among the ranks.

    Args:
        data: Folder of the files.
        batch_size: Records of one batch of this rank.
        rank: This rank.
        size: Ranks of the ring.
        spec: Parses the records; None for the convolutional model of 0.7 M parameters.
    """
    files = tf.data.Dataset.from_tensor_slices(tfrecord_files(data)).shard(size, rank)
    records = tf.data.TFRecordDataset(files)
    examples = (spec or CnnSpec()).create_dataset(records, Mode.TRAINING)
    return examples.repeat().batch(batch_size).prefetch(tf.data.AUTOTUNE)


def prediction_dataset(data: Path, batch_size: int) -> Any:
    """All records once, in order, without labels."""
    examples = tf.data.TFRecordDataset(tfrecord_files(data)).map(
        parse_features, num_parallel_calls=tf.data.AUTOTUNE
    )
    return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def one_pass(data: Path, batch_size: int, *, parallel_calls: int | None = None) -> Any:
    """All records once, parsed one by one as the zoo does it."""
    records = tf.data.TFRecordDataset(tfrecord_files(data))
    return _batches(records, batch_size, parallel_calls)


def one_pass_in_batches(
    data: Path, batch_size: int, *, compression: str = "", shuffle_records: int = SHUFFLE_RECORDS
) -> Any:
    """All records once, shuffled as strings and parsed batch by batch: the expert's form."""
    files = tf.data.TFRecordDataset(tfrecord_files(data), compression)
    records = files.shuffle(shuffle_records)
    return records.batch(batch_size).map(parse_batch).prefetch(tf.data.AUTOTUNE)


def one_pass_by_generator(data: Path, batch_size: int, num_records: int) -> Any:
    """The first records of RecordIO files, one of them a Python call."""
    reader = Reader.open(str(data / RECORDIO_PATTERN))
    signature = tf.TensorSpec((), tf.string)
    records = tf.data.Dataset.from_generator(reader.__iter__, output_signature=signature)
    return _batches(records.take(num_records), batch_size, None)


def _batches(records: tf.data.Dataset, batch_size: int, parallel_calls: int | None) -> Any:
    examples = records.map(parse_one, num_parallel_calls=parallel_calls).shuffle(SHUFFLE_RECORDS)
    return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)
