"""Write the same pictures in every format of data: PNGs of 32 x 32 pixels, and a label each."""

import base64
import io
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import tensorflow as tf
from sklearn.datasets import load_sample_images

from benchmarks.common import side_parser, write_numbers
from edl_horovod.files.json_text import dumps
from edl_horovod.records.sources.recordio import Writer

SIDE = 32
NUM_DISTINCT = 2048
"""To encode a picture is slow, so the files repeat so many."""
NUM_CLASSES = 10
GROUP_RECORDS = 1024
"""Of a row group, and of a record batch."""


def main() -> int:
    """Write the files; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--formats", type=Path, required=True)
    args = parser.parse_args()
    pictures = _pictures(min(NUM_DISTINCT, args.number))
    rows = [(pictures[n % len(pictures)], n % NUM_CLASSES) for n in range(args.number)]
    for name, write in WRITERS.items():
        folder = args.formats / name
        folder.mkdir(parents=True)
        write(folder, rows)
    size = sum(len(picture) for picture, _ in rows) / args.number
    write_numbers(args.place, {"picture_bytes": size})
    return 0


Rows = list[tuple[bytes, int]]


def _pictures(count: int) -> list[bytes]:
    photographs = load_sample_images().images
    random = np.random.default_rng(0)
    return [_piece(photographs[number % len(photographs)], random) for number in range(count)]


def _piece(photograph: np.ndarray, random: np.random.Generator) -> bytes:
    top, left = (int(random.integers(0, size - SIDE)) for size in photograph.shape[:2])
    stream = io.BytesIO()
    pixels = photograph[top : top + SIDE, left : left + SIDE]
    PIL.Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _examples(rows: Rows) -> Iterator[bytes]:
    for picture, label in rows:
        feature = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        yield example.SerializeToString()


def _recordio(folder: Path, rows: Rows) -> None:
    with Writer(folder / "a.recordio") as writer:
        for example in _examples(rows):
            writer.write(example)


def _tfrecord(folder: Path, rows: Rows) -> None:
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for example in _examples(rows):
            writer.write(example)


def _table(rows: Rows) -> pa.Table:
    pictures, labels = zip(*rows, strict=True)
    return pa.table({"image": pa.array(pictures, pa.binary()), "label": pa.array(labels)})


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
    samples = [
        struct.pack("<I", len(picture)) + struct.pack("<q", label) + picture
        for picture, label in rows
    ]
    header = {
        "column_encodings": ["bytes", "int"],
        "column_names": ["image", "label"],
        "column_sizes": [None, 8],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "version": 2,
    }
    text = dumps(header).encode()
    begin = 4 + 4 * (len(samples) + 1) + len(text)
    bounds = begin + np.cumsum([0, *map(len, samples)])
    with (folder / "shard.00000.mds").open("wb") as stream:
        stream.write(struct.pack("<I", len(samples)) + bounds.astype("<u4").tobytes() + text)
        stream.writelines(samples)


def _numpy(folder: Path, rows: Rows) -> None:
    # Arrays have one shape, so the pictures are filled up to the size of the largest.
    longest = max(len(picture) for picture, _ in rows)
    pictures = np.zeros((len(rows), longest), np.uint8)
    for number, (picture, _) in enumerate(rows):
        pictures[number, : len(picture)] = np.frombuffer(picture, np.uint8)
    np.savez(folder / "a.npz", image=pictures, label=np.array([label for _, label in rows]))


def _folders(folder: Path, rows: Rows) -> None:
    for number in range(NUM_CLASSES):
        (folder / str(number)).mkdir()
    for number, (picture, label) in enumerate(rows):
        (folder / str(label) / f"{number:07d}.png").write_bytes(picture)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "recordio": _recordio,
    "tfrecord": _tfrecord,
    "parquet": _parquet,
    "arrow": _arrow,
    "jsonl": _json_lines,
    "webdataset": _webdataset,
    "mds": _mds,
    "numpy": _numpy,
    "folders": _folders,
}
"""What writes the pictures, by the name of the format and of its folder."""


if __name__ == "__main__":
    sys.exit(main())
