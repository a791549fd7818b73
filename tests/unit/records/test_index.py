"""The index: the location of each record."""

import functools
import os
import tempfile

import numpy as np
import pytest
from hypothesis import example, given, settings
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
@example(files=[[], [b"b"], []], chunk_bytes=60)
def test_ids_count_records_in_the_order_of_sorted_files(files, chunk_bytes):
    records = [record for file in files for record in file]
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{n}.recordio") for n in range(len(files))]
        for path, file in zip(paths, files, strict=True):
            write(path, file, chunk_bytes=chunk_bytes)

        index = Index.open(paths[::-1])

        num_chunks = [len(read_chunks(path).chunks) for path in paths]
        assert [file.path for file in index.files] == paths
        assert [file.num_chunks for file in index.files] == num_chunks
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

    for array in (index.block_starts, index.block_counts):
        assert array.dtype == np.int64
        assert not array.flags.writeable
    assert index.block_counts.tolist() == [4096, 4096, 1808, 2, 2, 1, 4096]
    assert index.block_starts.tolist() == [0, 4096, 8192, 10_000, 10_002, 10_004, 10_005]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.recordio", "a.recordio"], "given twice"),
        (["gone.recordio"], r"gone\.recordio"),
        (["empty.recordio"], "1 files"),
        ([""], "Is a directory"),
    ],
)
def test_files_that_cannot_be_indexed_are_an_error(tmp_path, names, message):
    write(tmp_path / "a.recordio", [b"a"])
    write(tmp_path / "empty.recordio", [])
    with pytest.raises(DataError, match=message):
        Index.open([os.path.join(tmp_path, name) for name in names])


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
