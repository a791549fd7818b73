"""Every format in S3: the records of the disk, by ranges, and no file is fetched as a whole."""

import functools

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.records.job_data import open_source
from edl_horovod.records.source import JobFolders
from tests.columns import plain
from tests.component.records import writers
from tests.later import LATER
from tests.s3_server import serve

if LATER:
    import tensorflow as tf

COUNT = 3000
X = np.random.default_rng(3).normal(size=(COUNT, 200))


@pytest.fixture(scope="module")
def server():
    with serve() as server:
        yield server


@pytest.fixture(autouse=True)
def _environment(server, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


def tfrecord(path, rows):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(row.tobytes())


def text(path, rows):
    path.write_text("".join(f"{row.tolist()}\n" for row in rows))


def jsonl(path, rows):
    lines = [f'{{"n": {n}, "x": {row[:50].tolist()}}}\n' for n, row in enumerate(rows)]
    path.write_text("".join(lines))


def npz(path, rows):
    np.savez(path, n=np.arange(len(rows)), x=rows)


def opened_remotely(name, tmp_path):
    folders = JobFolders(*(tmp_path / "job" / part for part in ("index", "records", "part")))
    return open_source(f"s3://bucket/{name}", DataConfig(), folders=folders)


@pytest.mark.long
@pytest.mark.parametrize(
    ("write", "name"),
    [
        (tfrecord, "a.tfrecord"),
        (text, "a.txt"),
        (functools.partial(writers.parquet, row_group_size=300), "a.parquet"),
        (functools.partial(writers.arrow, compression="lz4", chunksize=300), "a.feather"),
        (jsonl, "a.jsonl"),
        (npz, "a.npz"),
        (writers.tar, "a.tar"),
        (writers.mds, "a.mds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_remote_records_are_those_of_the_disk(server, tmp_path, write, name):
    path = tmp_path / name
    write(path, X)
    server.put(f"formats/{name}", path.read_bytes())
    ids = [COUNT - 1, 0, 1500]
    with opened_remotely(f"formats/{name}", tmp_path) as remote:
        server.requests.clear()
        records = remote.read(ids)
        largest = max(request.num_bytes for request in server.gets(name))
        fingerprint = remote.fingerprint
    with open_source(str(path), DataConfig()) as local:
        expected = local.read(ids)
        assert local.fingerprint == fingerprint
    if local.layout is None:
        assert records == expected
    else:
        assert list(map(plain, records)) == list(map(plain, expected))
    assert largest < path.stat().st_size / 2


def test_remote_pictures_are_those_of_the_disk_one_request_each(server, tmp_path):
    for number in range(6):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(tf.fill([8, 8, 3], tf.cast(number, tf.uint8))).numpy())
        server.put(f"photos/{path.parent.name}/{path.name}", path.read_bytes())
    with opened_remotely("photos", tmp_path) as remote:
        server.requests.clear()
        records = remote.read([5, 0])
        assert len(server.gets(".png")) == 2
    with open_source(str(tmp_path / "photos"), DataConfig()) as local:
        assert list(map(plain, records)) == list(map(plain, local.read([5, 0])))
