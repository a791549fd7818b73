"""Writes the data that the sides read: records, arrays, pictures in files of every format."""

import base64
import functools
import io
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import tensorflow as tf
from sklearn.datasets import load_sample_images

from benchmarks.side import Numbers, Work
from edl_horovod.files.json_text import dumps
from edl_horovod.records.sources.recordio import Codec, Writer
from model_zoo import sample_images

NUM_CLASSES = 10
NUM_DISTINCT = 2048
"""Making an example or encoding a picture is slow, so the files repeat so many."""
NUM_DISTINCT_PICTURES = 512
"""Random pictures do not shrink, and nothing looks at them."""
GROUP_RECORDS = 1024
"""Records of a row group, and of a record batch."""

Rows = Sequence[tuple[bytes, int]]


def numbers(work: Work, place: Path, num_records: int, codec: str = "snappy") -> None:
    """Write 784 floats and a label each, as RecordIO and as TFRecord."""
    random, distinct = np.random.default_rng(0), []
    for _ in range(min(NUM_DISTINCT, num_records)):
        # Pixels as a photograph has them: whole numbers from 0 to 255, stored as floats.
        pixels = random.integers(0, 256, 28 * 28).astype(np.float32)
        distinct.append(_example(_floats(pixels), int(random.integers(0, NUM_CLASSES))))
    _write_records(work.data, distinct, num_records, num_files=8, codec=Codec[codec.upper()])


def digits(work: Work, place: Path) -> None:
    """Write 1,434 of the demo's handwritten digits, as RecordIO and as TFRecord."""
    distinct = [
        _example(_floats(np.ravel(picture)), label)
        for number, label, picture in sample_images.digits()
        if number % sample_images.HELD_OUT_EVERY
    ]
    _write_records(work.data, distinct, len(distinct), num_files=6)


def pictures(work: Work, place: Path, num_records: int) -> None:
    """Write pictures of 64 x 64 x 3 bytes and a label, as RecordIO and as TFRecord."""
    random, distinct = np.random.default_rng(0), []
    for _ in range(min(NUM_DISTINCT_PICTURES, num_records)):
        pixels = random.integers(0, 256, (64, 64, 3), np.uint8).tobytes()
        distinct.append(_example(_bytes(pixels), int(random.integers(0, NUM_CLASSES))))
    _write_records(work.data, distinct, num_records, num_files=4)


def arrays(work: Work, place: Path, num_records: int, shape: list[int]) -> None:
    """Write pictures and labels as NumPy's arrays, which all sides with PyTorch train on."""
    random = np.random.default_rng(0)
    work.data.mkdir()
    images = random.integers(0, 256, (num_records, *shape), np.uint8)
    labels = random.integers(0, NUM_CLASSES, num_records)
    np.savez(work.data / "pictures.npz", image=images, label=labels)


def photographs(work: Work, place: Path, number: int) -> None:
    """Write PNG files to prepare, of the size that classifiers are fed, in folders by label."""
    for index, piece in enumerate(_pieces(number, 224)):
        folder = work.data / str(index % NUM_CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(piece).save(folder / f"{index:05d}.png", compress_level=1)


def chunks(work: Work, place: Path, files: int, chunks_of_file: int) -> None:
    """Write RecordIO files of many small chunks."""
    work.data.mkdir()
    first = work.data / "part-0000.recordio"
    with Writer(first, chunk_bytes=1) as writer:
        for number in range(chunks_of_file):
            writer.write(number.to_bytes(8, "little"))
    # An index looks at each file by itself, so that they may be the same.
    for number in range(1, files):
        shutil.copyfile(first, work.data / f"part-{number:04d}.recordio")


def formats(work: Work, place: Path, number: int) -> Numbers:
    """Write the same PNGs of 32 x 32 pixels, and a label each, in every format."""
    distinct = []
    for piece in _pieces(min(NUM_DISTINCT, number), 32):
        stream = io.BytesIO()
        PIL.Image.fromarray(piece).save(stream, "PNG", compress_level=1)
        distinct.append(stream.getvalue())
    rows = [(distinct[n % len(distinct)], n % NUM_CLASSES) for n in range(number)]
    for name, write in WRITERS.items():
        folder = work.data / name
        folder.mkdir(parents=True)
        write(folder, rows)
    return {"picture_bytes": sum(len(picture) for picture, _ in rows) / number}


def _pieces(number: int, side: int) -> Iterator[np.ndarray]:
    """Squares at random places of two photographs."""
    images = load_sample_images().images
    random = np.random.default_rng(0)
    for index in range(number):
        image = images[index % len(images)]
        top, left = (int(random.integers(0, size - side)) for size in image.shape[:2])
        yield image[top : top + side, left : left + side]


def _floats(values: np.ndarray) -> Any:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _bytes(content: bytes) -> Any:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))


def _example(image: Any, label: int) -> bytes:
    number = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    features = tf.train.Features(feature={"image": image, "label": number})
    return tf.train.Example(features=features).SerializeToString()


def _write_records(
    folder: Path,
    distinct: Sequence[bytes],
    num_records: int,
    *,
    num_files: int,
    codec: Codec = Codec.SNAPPY,
) -> None:
    """Write files of both kinds, all with the same number of records.

    TFRecord files are compressed where the codec is gzip, the only one that both know.
    """
    folder.mkdir()
    per_file = num_records // num_files
    compression = "GZIP" if codec is Codec.GZIP else ""
    for number in range(num_files):
        places = range(number * per_file, (number + 1) * per_file)
        stem = folder / f"part-{number:02d}"
        with (
            Writer(stem.with_suffix(".recordio"), codec=codec) as recordio,
            tf.io.TFRecordWriter(str(stem.with_suffix(".tfrecord")), compression) as tfrecord,
        ):
            for place in places:
                recordio.write(distinct[place % len(distinct)])
                tfrecord.write(distinct[place % len(distinct)])


def _with_examples(open_writer: Callable[[Path], Any], folder: Path, rows: Rows) -> None:
    with open_writer(folder) as writer:
        for picture, label in rows:
            writer.write(_example(_bytes(picture), label))


def _table(rows: Rows) -> pa.Table:
    images, labels = zip(*rows, strict=True)
    return pa.table({"image": pa.array(images, pa.binary()), "label": pa.array(labels)})


def _parquet(folder: Path, rows: Rows) -> None:
    pq.write_table(_table(rows), folder / "a.parquet", row_group_size=GROUP_RECORDS)


def _arrow(folder: Path, rows: Rows) -> None:
    path = str(folder / "a.arrow")
    feather.write_feather(_table(rows), path, compression="uncompressed", chunksize=GROUP_RECORDS)


def _json_lines(folder: Path, rows: Rows) -> None:
    with (folder / "a.jsonl").open("w") as stream:
        for picture, label in rows:
            text = base64.b64encode(picture).decode()
            stream.write(f"{dumps({'image': text, 'label': label})}\n")


def _webdataset(folder: Path, rows: Rows) -> None:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, (picture, label) in enumerate(rows):
            for ending, content in (("png", picture), ("cls", b"%d" % label)):
                info = tarfile.TarInfo(f"{number:07d}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def _mds(folder: Path, rows: Rows) -> None:
    samples = [struct.pack("<Iq", len(picture), label) + picture for picture, label in rows]
    names, encodings = ["image", "label"], ["bytes", "int"]
    columns = {"encodings": encodings, "names": names, "sizes": [None, 8]}
    header = {f"column_{name}": values for name, values in columns.items()}
    header |= {"compression": None, "format": "mds", "hashes": [], "version": 2}
    text = dumps(header).encode()
    begin = 4 + 4 * (len(samples) + 1) + len(text)
    bounds = begin + np.cumsum([0, *map(len, samples)])
    with (folder / "shard.00000.mds").open("wb") as stream:
        stream.write(struct.pack("<I", len(samples)) + bounds.astype("<u4").tobytes() + text)
        stream.writelines(samples)


def _numpy(folder: Path, rows: Rows) -> None:
    # Arrays have one shape, so the pictures are filled up to the size of the largest.
    images = np.zeros((len(rows), max(len(picture) for picture, _ in rows)), np.uint8)
    for number, (picture, _) in enumerate(rows):
        images[number, : len(picture)] = np.frombuffer(picture, np.uint8)
    np.savez(folder / "a.npz", image=images, label=np.array([label for _, label in rows]))


def _folders(folder: Path, rows: Rows) -> None:
    for number in range(NUM_CLASSES):
        (folder / str(number)).mkdir()
    for number, (picture, label) in enumerate(rows):
        (folder / str(label) / f"{number:07d}.png").write_bytes(picture)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "recordio": functools.partial(_with_examples, lambda folder: Writer(folder / "a.recordio")),
    "tfrecord": functools.partial(
        _with_examples, lambda folder: tf.io.TFRecordWriter(str(folder / "a.tfrecord"))
    ),
    "parquet": _parquet,
    "arrow": _arrow,
    "jsonl": _json_lines,
    "webdataset": _webdataset,
    "mds": _mds,
    "numpy": _numpy,
    "folders": _folders,
}
"""What writes the pictures, by the name of the format and of its folder."""
