"""The index: the location of each record."""

import functools
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import Codec
from edl_horovod.records.index import Index
from edl_horovod.records.index_tables import MAX_BLOCK_RECORDS
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import read_chunks
from tests.unit.records import record_files

write = functools.partial(record_files.write, codec=Codec.NONE)
FILES = st.lists(st.lists(st.binary(max_size=12), max_size=25), min_size=1, max_size=5).filter(any)


@settings(max_examples=60)
@given(files=FILES, chunk_bytes=st.integers(1, 60))
def test_ids_count_records_in_the_order_of_sorted_files(files, chunk_bytes):
    records = [record for file in files for record in file]
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{n}.recordio") for n in range(len(files))]
        for path, file in zip(paths, files, strict=True):
            write(path, file, chunk_bytes=chunk_bytes)

        index = Index.open(paths[::-1])

        assert [file.path for file in index.files] == list(paths)
        assert index.num_records == len(records)
        covered = [
            record_id
            for start, count in zip(index.block_starts, index.block_counts, strict=True)
            for record_id in range(start, start + count)
        ]
        assert covered == list(range(len(records)))
        with Reader(index) as reader:
            assert reader.read(range(len(records))) == records
        chunk_numbers, slots = index.locate(range(len(records)))
        first_ids = np.cumsum([0, *map(len, files)])
        for record_id, (number, slot) in enumerate(zip(chunk_numbers, slots, strict=True)):
            path = index.file_of_chunk(number).path
            chunks = read_chunks(path).chunks
            chunk = index.chunk(number)
            assert chunk == chunks[chunk.number]
            before = sum(earlier.num_records for earlier in chunks[: chunk.number])
            assert first_ids[paths.index(path)] + before + slot == record_id


def test_blocks_are_chunks_and_parts_of_chunks_with_many_records(tmp_path):
    write(tmp_path / "a.recordio", [b""] * 10_000)
    write(tmp_path / "b.recordio", [b"x" * 10] * 5, chunk_bytes=30)
    write(tmp_path / "c.recordio", [b""] * MAX_BLOCK_RECORDS)

    index = Index.open(str(tmp_path))

    assert index.block_starts.dtype == index.block_counts.dtype == np.int64
    assert index.block_counts.tolist() == [4096, 4096, 1808, 2, 2, 1, 4096]
    assert index.block_starts.tolist() == [0, 4096, 8192, 10_000, 10_002, 10_004, 10_005]


def test_arrays_are_read_only(tmp_path):
    write(tmp_path / "a.recordio", [b"a"])
    index = Index.open(str(tmp_path))

    for array in (index.block_starts, index.block_counts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_empty_file_among_others_holds_no_ids(tmp_path):
    write(tmp_path / "a.recordio", [])
    write(tmp_path / "b.recordio", [b"b"])
    write(tmp_path / "c.recordio", [])

    index = Index.open(str(tmp_path))

    assert index.file_of_chunk(0).path == str(tmp_path / "b.recordio")
    assert [file.num_chunks for file in index.files] == [0, 1, 0]


def test_no_records_at_all_is_an_error(tmp_path):
    write(tmp_path / "a.recordio", [])
    with pytest.raises(DataError, match="1 files"):
        Index.open(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.recordio", "a.recordio"], "given twice"),
        (["gone.recordio"], r"gone\.recordio"),
        ([""], "Is a directory"),
    ],
)
def test_files_that_cannot_be_indexed_are_an_error(tmp_path, names, message):
    write(tmp_path / "a.recordio", [b"a"])
    with pytest.raises(DataError, match=message):
        Index.open([os.path.join(tmp_path, name) for name in names])


def test_locate_out_of_range_is_an_index_error(tmp_path):
    write(tmp_path / "a.recordio", [b"a"])
    with pytest.raises(IndexError, match="from 1 to 1"):
        Index.open(str(tmp_path)).locate([1])


def test_fingerprint_is_the_same_for_a_copy_elsewhere(tmp_path):
    for folder in ("data", "copy"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.recordio", [b"one", b"two"])
        write(tmp_path / folder / "b.recordio", [b"three"])

    fingerprint = Index.open(str(tmp_path / "data")).fingerprint

    assert Index.open(str(tmp_path / "copy")).fingerprint == fingerprint
    assert len(fingerprint) == 32


def test_index_reads_headers_only(tmp_path):
    # A file of 3 GB that has no payload on the disk: reading it would take seconds.
    path = tmp_path / "sparse.recordio"
    with path.open("wb") as file:
        for number in range(96):
            file.seek(number * (20 + (1 << 25)))
            file.write(bytes.fromhex("04030201 00000000 00000000 00000002 01000000"))
        file.truncate(96 * (20 + (1 << 25)))

    index = Index.open([str(path)])

    assert index.num_records == 96
