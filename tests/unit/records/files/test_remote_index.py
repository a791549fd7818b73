"""The index of data in a store: uploaded with the files, or kept by the first job."""

import os
from pathlib import Path

import pytest

from edl_horovod.records import index_store
from edl_horovod.records.chunks import Codec
from edl_horovod.records.index import Index
from edl_horovod.records.reader import Reader
from tests.s3_server import S3Server
from tests.unit.records import record_files

NUM_FILES = 12
PATTERN = "s3://bucket/indexed/*.recordio"


def write(folder: Path, number: int, first: int, *, chunk_bytes: int = 100) -> Path:
    path = folder / f"part-{number:02}.recordio"
    records = [b"record %05d" % record for record in range(first, first + 50)]
    return record_files.write(path, records, codec=Codec.NONE, chunk_bytes=chunk_bytes)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "prepared"
    folder.mkdir()
    for number in range(NUM_FILES):
        write(folder, number, 50 * number)
    return folder


def upload(s3: S3Server, path: Path) -> Path:
    s3.put(f"indexed/{path.name}", path.read_bytes())
    return path


@pytest.fixture
def uploaded(s3, folder):
    for path in folder.iterdir():
        upload(s3, path)
    s3.requests.clear()
    return s3


@pytest.fixture
def with_index(uploaded, folder, monkeypatch):
    """As `edl prepare` leaves it, and a copy to the store makes of it: with other times."""
    monkeypatch.setattr(index_store, "SMALL_BYTES", 0)
    Index.open(str(folder), folder=folder)
    (index,) = folder.glob(".*.index")
    upload(uploaded, index)
    uploaded.requests.clear()
    return uploaded


def requests_for_files(s3: S3Server) -> list[str]:
    return sorted(os.path.basename(r.key) for r in s3.requests if r.key.endswith(".recordio"))


def test_with_an_index_a_file_costs_one_request_at_most(with_index, folder, tmp_path):
    names = [f"part-{number:02}.recordio" for number in range(NUM_FILES)]

    index = Index.open(PATTERN, folder=tmp_path / "job")

    assert requests_for_files(with_index) == names
    assert len(with_index.gets(".index")) == 1
    assert len(with_index.requests) <= NUM_FILES + 3  # And the listing.
    assert index.fingerprint == Index.open(str(folder)).fingerprint
    assert not index.block_starts.flags.owndata  # Fetched once, and mapped from the job's folder.


@pytest.mark.long
def test_other_ranks_and_later_jobs_ask_for_nothing_but_the_listing(uploaded, tmp_path):
    first = Index.open(PATTERN, folder=tmp_path / "job")
    for folder in (tmp_path / "job", tmp_path / "another job"):
        uploaded.requests.clear()
        with Reader.open(PATTERN, folder=folder) as reader:
            assert reader.fingerprint == first.fingerprint
            assert requests_for_files(uploaded) == []
            assert not uploaded.gets(".index")
            assert reader.read([599, 0]) == [b"record 00599", b"record 00000"]


@pytest.mark.long
def test_only_a_file_that_was_uploaded_again_is_indexed_again(uploaded, folder, tmp_path):
    Index.open(PATTERN, folder=tmp_path / "job")
    changed = upload(uploaded, write(folder, 3, 9000))
    uploaded.requests.clear()
    messages: list[str] = []

    with Reader.open(PATTERN, folder=tmp_path / "job", tell=messages.append) as reader:
        assert {*requests_for_files(uploaded)} == {changed.name}
        assert reader.read([150]) == [b"record 09000"]

    assert "1 of 12" in messages[0]
    assert changed.name in messages[0]


@pytest.mark.long
def test_an_uploaded_index_of_other_files_is_not_believed(with_index, folder, tmp_path):
    upload(with_index, write(folder, 5, 7000))  # Of the same size, and other chunks.
    upload(with_index, write(folder, 6, 0, chunk_bytes=1000))
    messages: list[str] = []

    with Reader.open(PATTERN, folder=tmp_path / "job", tell=messages.append) as reader:
        assert reader.read([250, 300]) == [b"record 07000", b"record 00000"]

    assert "2 of 12" in messages[0]


@pytest.mark.long
def test_a_file_that_is_not_an_index_is_ignored(with_index, folder, tmp_path, caplog):
    (index,) = folder.glob(".*.index")
    with_index.put(f"indexed/{index.name}", b"<html>no such page</html>")
    assert Index.open(PATTERN, folder=tmp_path / "job").num_records == 50 * NUM_FILES
    assert index.name in caplog.text
