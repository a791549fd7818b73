"""An index on the disk: taken for files that are as they were when it was written, else not."""

import json
import os
import shutil
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import Codec
from edl_horovod.records.index import Index
from edl_horovod.records.index_store import SMALL_BYTES
from edl_horovod.records.index_tables import CHUNK, MAX_BLOCK_RECORDS
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import read_chunks
from tests.records import NUMBERED_BYTES, write_numbered
from tests.unit.records.record_files import keeping_times, numbers, write


def spoil(path: Path) -> None:
    """Change a header amid a file, so that a scan fails; its size, time and ends stay."""
    with keeping_times(path), path.open("r+b") as file:
        file.seek(read_chunks(str(path)).chunks[1].offset)
        file.write(b"none")


def test_what_one_process_found_another_one_does_not_scan_for(data, job):
    scanned = Index.open(str(data), folder=job)
    with Reader.open(str(data), folder=job) as reader:
        mapped = reader.index
        assert mapped.fingerprint == scanned.fingerprint == Index.open(str(data)).fingerprint
        assert len(mapped.fingerprint) == 32
        assert mapped.files == scanned.files
        assert mapped.tables.chunks.tolist() == scanned.tables.chunks.tolist()
        assert mapped.block_starts.tolist() == scanned.block_starts.tolist()
        assert mapped.block_counts.tolist() == scanned.block_counts.tolist()
        assert numbers(data, folder=job) == [*range(mapped.num_records)]
    spoil(data / "a.recordio")
    with pytest.raises(DataError):
        Index.open(str(data), max_chunk_bytes=1 << 20)  # Another setting needs another index.
    assert Index.open(str(data)).fingerprint == scanned.fingerprint


CHANGES = {
    "a file is longer": lambda data: write_numbered(data / "a.recordio", range(30)),
    "other content": lambda data: write_numbered(data / "a.recordio", range(100, 120)),
    "another count in the same size": lambda data: write(
        data / "a.recordio",
        [bytes(2 * NUMBERED_BYTES + 4)] * 10,
        codec=Codec.NONE,
        chunk_bytes=3 * NUMBERED_BYTES,
    ),
    "another file": lambda data: write_numbered(data / "d.recordio", range(100, 105)),
    "a file is gone": lambda data: (data / "a.recordio").unlink(),
    "a file is renamed": lambda data: (data / "a.recordio").rename(data / "d.recordio"),
    "only a name differs": lambda data: (data / "c.recordio").rename(data / "d.recordio"),
}


@pytest.mark.parametrize("make_change", CHANGES.values(), ids=CHANGES)
def test_files_that_have_changed_are_scanned_again(data, job, make_change):
    before = Index.open(str(data), folder=job).fingerprint
    make_change(data)
    now = Index.open(str(data), folder=job)
    assert now.fingerprint == Index.open(str(data)).fingerprint != before
    assert now.num_records == Index.open(str(data), folder=job).num_records


def test_each_setting_has_an_index_of_its_own(data, job):
    Index.open(str(data), folder=job)
    Index.open(str(data), folder=job, damaged="skip")
    assert len(list(data.glob(".*.index"))) == 2
    with pytest.raises(DataError, match="too large"):
        Index.open(str(data), folder=job, max_chunk_bytes=NUMBERED_BYTES)


def test_an_index_of_csv_files_keeps_their_headers(tmp_path, job):
    (tmp_path / "a.csv").write_bytes(b"x,y\r\n" + b"1,2\n" * (SMALL_BYTES // 4))
    scanned = Index.open(str(tmp_path / "a.csv"), folder=job)
    mapped = Index.open(str(tmp_path / "a.csv"), folder=job)
    assert mapped.files == scanned.files
    assert mapped.files[0].header == b"x,y"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:10],
        lambda content: content[:-1],
        lambda content: b"12345678" + content[8:],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:30] + b"}" + content[31:],
    ],
    ids=["empty", "no start", "cut short", "another version", "a wrong bit", "no JSON"],
)
def test_a_damaged_index_is_passed_over_and_written_again(data, job, caplog, damage):
    fingerprint = Index.open(str(data), folder=job).fingerprint
    (file,) = data.glob(".*.index")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert Index.open(str(data), folder=job).fingerprint == fingerprint
    assert ignored_indexes(caplog)
    assert file.read_bytes() == whole


def test_small_data_needs_no_index(tmp_path, job):
    write_numbered(tmp_path / "a.recordio", range(2))
    Index.open(str(tmp_path), folder=job)
    assert not job.exists()
    assert not list(tmp_path.glob(".*"))


def test_an_index_beside_its_files_moves_with_them_and_is_none_of_them(data):
    fingerprint = Index.open(str(data), folder=data).fingerprint
    copy = data.parent / "copy"
    shutil.copytree(data, copy)
    data.rename(data.parent / "moved")
    for folder in (data.parent / "moved", copy):
        spoil(folder / "a.recordio")
        index = Index.open(str(folder))
        assert index.fingerprint == fingerprint
        names = [Path(file.path).name for file in index.files]
        assert names == [f"{name}.recordio" for name in "abc"]
        with pytest.raises(DataError):
            Index.open(f"{folder}/a*")  # It is of both files, and of no fewer.


def test_of_processes_that_start_together_one_scans(data, job, caplog):
    spoil(data / "a.recordio")
    with ThreadPoolExecutor(4) as pool:
        opened = [pool.submit(Index.open, str(data), damaged="skip", folder=job) for _ in range(4)]
        assert len({future.result().fingerprint for future in opened}) == 1
    assert caplog.text.count("data_plan.damaged=skip") == 1
    assert {future.result().files[0].skipped_chunks for future in opened} == {1}


def ignored_indexes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about indexes that could not be used."""
    kind = ("edl_horovod.records.index_store", "WARNING")
    records = [record for record in caplog.records if (record.name, record.levelname) == kind]
    return [record.message for record in records if ".index" in record.message]


def index_beside(data: Path) -> Path:
    Index.open(str(data), folder=data)
    (path,) = data.glob(".*.index")
    return path


def edit(path: Path, change: str) -> None:
    """Change the chunks of an index whose checksum fits again afterwards."""
    content = bytearray(path.read_bytes())
    magic, header_bytes, _ = struct.unpack_from("<8sQQ", content)
    length = json.loads(content[24 : 24 + header_bytes])["lengths"]["chunks"]
    exec(change, {"chunks": np.frombuffer(content, CHUNK, length, 24 + header_bytes)})
    struct.pack_into("<8sQQ", content, 0, magic, header_bytes, zlib.crc32(content[24:]))
    path.write_bytes(content)


LAST_OF_FIRST_FILE = 9


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("chunks[1] = chunks[0]", "overlap"),
        ("chunks['compressed_bytes'][0] += 1", "overlap"),
        (f"chunks['compressed_bytes'][{LAST_OF_FIRST_FILE}] += 1", "end of a file"),
        ("chunks['offset'][0] = -(2**63)", "begins before"),
        ("chunks['num_records'][0] = 0", "no records"),
        ("chunks['num_records'][0] += 1; chunks['num_records'][1] -= 1", "chunk_starts"),
        ("chunks['checksum'][0] ^= 1", "fingerprint"),
    ],
)
def test_an_index_that_no_scan_gives_is_passed_over(data, caplog, change, why):
    path = index_beside(data)
    scanned = Index.open(str(data))
    assert scanned.files[0].num_chunks == LAST_OF_FIRST_FILE + 1
    edit(path, change)
    assert numbers(data) == [*range(scanned.num_records)]
    assert any(why in message for message in ignored_indexes(caplog))


def test_an_index_of_chunks_of_several_blocks_is_taken(tmp_path, job, caplog):
    records = [bytes(SMALL_BYTES // MAX_BLOCK_RECORDS // 2)] * 3 * MAX_BLOCK_RECORDS
    write(tmp_path / "a.recordio", records, codec=Codec.NONE, chunk_bytes=8 << 20)
    (tmp_path / "b.recordio").touch()  # A file may have no chunk at all.
    scanned = Index.open(str(tmp_path), folder=job, max_chunk_bytes=8 << 20)
    mapped = Index.open(str(tmp_path), folder=job, max_chunk_bytes=8 << 20)
    assert mapped.block_counts.tolist() == scanned.block_counts.tolist()
    assert len(mapped.block_counts) > mapped.num_chunks
    assert not ignored_indexes(caplog)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_what_is_no_regular_file_is_no_index(data, tmp_path, caplog, kind):
    path = index_beside(data)
    elsewhere = path.rename(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(Index.open, str(data))
        try:
            assert opened.result(timeout=20).num_chunks > 0
        finally:
            if not opened.done():
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # Lets go of the reader.
    assert ignored_indexes(caplog)


@pytest.mark.root
def test_an_index_of_a_stranger_is_no_index(data, caplog):
    os.chown(index_beside(data), 12345, -1)
    Index.open(str(data))
    assert any("12345" in message for message in ignored_indexes(caplog))
    caplog.clear()
    os.chown(data / "a.recordio", 12345, -1)  # Who could write other records need not forge.
    Index.open(str(data))
    assert not ignored_indexes(caplog)
