"""Files that are rewritten with equal sizes, in formats that hold no checksums of their records."""

import io
import os
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import DataError
from edl_horovod.records.files import remote
from edl_horovod.records.job_data import open_source
from tests.columns import plain
from tests.mds_shards import shard
from tests.s3_server import serve


def arrow(path, values):
    table = pa.table({"x": values})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as to:
        to.write_table(table, max_chunksize=1000)


def parquet(path, values):
    how = {"compression": None, "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"x": values}), path, row_group_size=1000, **how)


def tar(path, values):
    with tarfile.open(path, "w") as archive:
        for number, value in enumerate(values):
            info = tarfile.TarInfo(f"{number:05d}.x")
            info.size = 1000
            archive.addfile(info, io.BytesIO(value.tobytes() + bytes(992)))


def mds(path, values):
    rows = [np.full(125, value).tobytes() for value in values]
    path.write_bytes(shard(rows, ["ndarray:float64:125"], [1000], ["x"]))


def npy(path, values):
    np.save(path, values)


FORMATS = {
    "arrow": (arrow, 10_000),
    "parquet": (parquet, 10_000),
    "npy": (npy, 10_000),
    "tar": (tar, 3000),
    "mds": (mds, 3000),
}
"""How each is written, and how many records are several chunks."""


def write(path, *, add=0.0, times=1):
    how, count = FORMATS[path.suffix[1:]]
    how(path, np.arange(float(times * count)) + add)
    return count * times


def rewrite(path, *, add, times=1):
    """Write a file again with as many bytes, a second later by the clock of the disk."""
    before = path.stat()
    write(path, add=add, times=times)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


def fingerprint(path):
    with open_source(str(path), DataConfig()) as source:
        return source.fingerprint


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return tmp_path / f"a.{request.param}"


@pytest.mark.parametrize("times", [1, 60], ids=["read as a whole", "read by samples"])
def test_the_fingerprint_differs_where_the_values_do(path, times):
    times = times if FORMATS[path.suffix[1:]][1] == 10_000 else min(times, 2)
    write(path, times=times)
    before = fingerprint(path)
    rewrite(path, add=1.0, times=times)
    assert fingerprint(path) != before


def test_the_fingerprint_is_that_of_a_copy_in_another_place_with_another_time(path, tmp_path):
    write(path)
    (tmp_path / "copy").mkdir()
    copy = shutil.copyfile(path, tmp_path / "copy" / path.name)
    os.utime(copy, ns=(1, 1))
    assert fingerprint(copy) == fingerprint(path)


@pytest.mark.parametrize("is_in_use", [True, False])
def test_a_file_that_is_rewritten_after_a_job_opened_it_is_an_error(path, is_in_use):
    count = write(path)
    with open_source(str(path), DataConfig()) as source:
        if is_in_use:
            source.read([0])
        rewrite(path, add=1.0)
        with pytest.raises(DataError, match="changed since"):
            source.read([count - 1])


def test_a_file_that_is_written_again_between_jobs_is_read_as_it_is(path):
    count = write(path)
    open_source(str(path), DataConfig()).close()
    rewrite(path, add=1.0)
    with open_source(str(path), DataConfig()) as source:
        assert len(source) == count
        source.read([count - 1])


def test_an_object_that_is_replaced_while_a_job_reads_it_is_an_error(tmp_path, monkeypatch):
    with serve() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(remote, "STATE_SECONDS", 0.0)
        path = tmp_path / "a.arrow"
        count = write(path)
        server.put("a.arrow", path.read_bytes())
        with open_source("s3://bucket/a.arrow", DataConfig()) as source:
            assert plain(source.read([count - 1])[0]) == [count - 1.0]
            rewrite(path, add=1.0)
            server.put("a.arrow", path.read_bytes())
            with pytest.raises(DataError, match="changed since"):
                source.read([0])
        assert fingerprint("s3://bucket/a.arrow") == fingerprint(path)
