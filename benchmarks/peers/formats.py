"""Read pictures and labels in batches, in the order of the file, by each format's own library."""

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import tensorflow as tf

from benchmarks.models.pictures import DESCRIPTION

Sizes = Iterator[int]
"""The number of records of each batch."""


def _tfrecord(folder: Path, batch: int) -> Sizes:
    dataset = tf.data.TFRecordDataset(str(folder / "a.tfrecord")).batch(batch)
    examples = dataset.map(lambda records: tf.io.parse_example(records, DESCRIPTION))
    for example in examples.prefetch(4):
        yield len(example["label"])


def _arrow_batches(batches: Any) -> Sizes:
    for batch in batches:
        pictures, labels = (batch.column(name).to_pylist() for name in ("image", "label"))
        yield len(list(zip(pictures, labels, strict=True)))


def _parquet(folder: Path, batch: int) -> Sizes:
    yield from _arrow_batches(pq.ParquetFile(folder / "a.parquet").iter_batches(batch))


def _arrow(folder: Path, batch: int) -> Sizes:
    with pa.memory_map(str(folder / "a.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
        yield from _arrow_batches(table.to_batches(max_chunksize=batch))


def _json_lines(folder: Path, batch: int) -> Sizes:
    table = pyarrow.json.read_json(folder / "a.jsonl")
    yield from _arrow_batches(table.to_batches(max_chunksize=batch))


def _webdataset(folder: Path, batch: int) -> Sizes:
    records: list[dict[str, bytes]] = [{}]
    with tarfile.open(folder / "a.tar") as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            records[-1][member.name.partition(".")[2]] = content.read()
            if len(records[-1]) == 2:
                if len(records) == batch:
                    yield len(records)
                    records = []
                records.append({})
    if len(records) > 1:
        yield len(records) - 1


def _numpy(folder: Path, batch: int) -> Sizes:
    with np.load(folder / "a.npz") as arrays:
        pictures, labels = arrays["image"], arrays["label"]
    for start in range(0, len(labels), batch):
        rows = slice(start, start + batch)
        yield len(tf.constant(pictures[rows])) and len(tf.constant(labels[rows]))


def _folders(folder: Path, batch: int) -> Sizes:
    files = tf.data.Dataset.list_files(f"{folder}/*/*.png", shuffle=False)

    def read(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.io.read_file(path), tf.strings.to_number(tf.strings.split(path, "/")[-2])

    for _, labels in files.map(read).batch(batch).prefetch(4):
        yield len(labels)


READERS: dict[str, Callable[[Path, int], Sizes]] = {
    "tfrecord": _tfrecord,
    "parquet": _parquet,
    "arrow": _arrow,
    "jsonl": _json_lines,
    "webdataset": _webdataset,
    "numpy": _numpy,
    "folders": _folders,
}
"""Readers by the name of the format. RecordIO and MDS have no library here."""
