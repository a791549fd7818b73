"""Files that are rewritten with equal sizes, in formats that hold no checksums of their records."""

import functools
import math
import os
import shutil

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import DataError
from edl_horovod.records.files import remote
from edl_horovod.records.job_data import open_source
from edl_horovod.records.source import JobFolders
from tests.columns import plain
from tests.component.records import writers
from tests.s3_server import serve

PLAIN = {"compression": None, "use_dictionary": False, "write_statistics": False}
FORMATS = {
    "arrow": (writers.arrow, 10_000, ()),
    "parquet": (functools.partial(writers.parquet, **PLAIN), 10_000, ()),
    "npy": (np.save, 10_000, ()),
    "tar": (writers.tar, 3000, (125,)),
    "mds": (writers.mds, 3000, (125,)),
}
"""How each is written, how many records are several chunks, and the shape of a record."""


def rows_of(path, *, add=0.0, times=1):
    _, count, shape = FORMATS[path.suffix[1:]]
    values = np.arange(float(times * count)) + add
    return np.repeat(values, math.prod(shape)).reshape(-1, *shape)


def write(path, *, add=0.0, times=1):
    write_rows, *_ = FORMATS[path.suffix[1:]]
    rows = rows_of(path, add=add, times=times)
    write_rows(path, rows)
    return len(rows)


def rewrite(path, *, add, times=1):
    """Write a file again with as many bytes, a second later by the clock of the disk."""
    before = path.stat()
    write(path, add=add, times=times)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


def times_of_large(path):
    """How often the records of a format make a file that has an index."""
    _, _, shape = FORMATS[path.suffix[1:]]
    return 2 if shape else 60


def fingerprint(path):
    with open_source(str(path), DataConfig()) as source:
        return source.fingerprint


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return tmp_path / f"a.{request.param}"


@pytest.mark.long(after=1)
@pytest.mark.parametrize("is_large", [False, True], ids=["read as a whole", "read by samples"])
def test_a_file_that_is_written_again_between_jobs_is_read_and_has_another_fingerprint(
    path, is_large
):
    times = times_of_large(path) if is_large else 1
    count = write(path, times=times)
    before = fingerprint(path)
    rewrite(path, add=1.0, times=times)
    with open_source(str(path), DataConfig()) as source:
        assert source.fingerprint != before
        assert len(source) == count
        source.read([count - 1])


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


@pytest.mark.long(after=1)
@pytest.mark.parametrize("name", ["arrow", "parquet", "tar", "mds"])
def test_an_index_serves_the_next_job_until_the_file_changes(tmp_path, name):
    path, messages = tmp_path / f"a.{name}", []
    times = times_of_large(path)
    count = write(path, times=times)
    ids = [count - 1, count // 3]
    folders = JobFolders(*(tmp_path / "job" / part for part in ("index", "records", "partial")))

    def opened():
        return open_source(str(path), DataConfig(), folders=folders, tell=messages.append)

    def read():
        with opened() as source:
            names = [column.name for column in source.layout.columns]
            values = plain(source.read(ids)[names.index("x")])
            # A part of a record in a tar file is bytes.
            return source.fingerprint, [np.asarray(value).tobytes() for value in values]

    def written(**change):
        return [row.tobytes() for row in rows_of(path, times=times, **change)[ids]]

    first, values = read()
    assert values == written()
    assert read() == (first, values)
    assert len(list(tmp_path.glob(".edl_horovod.*.index"))) == 1
    with opened() as source:
        rewrite(path, add=1.0, times=times)
        with pytest.raises(DataError, match="changed since"):
            source.read([count // 2])
    messages.clear()
    changed, values = read()
    assert changed != first
    assert values == written(add=1.0)
    assert path.name in messages[0]


@pytest.mark.long
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
