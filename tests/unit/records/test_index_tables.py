"""An index on the disk: taken for files that are as they were when it was written, else not."""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import Codec
from edl_horovod.records.index import Index
from edl_horovod.records.index_store import SMALL_BYTES
from edl_horovod.records.index_tables import CHUNK, MAX_BLOCK_RECORDS
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Writer, read_chunks
from tests.records import NUMBERED_BYTES, write_numbered


def spoil(path: Path) -> None:
    """Change a header amid a file, so that a scan fails; its size, time and ends stay."""
    stat, offset = path.stat(), read_chunks(str(path)).chunks[1].offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"none")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_what_one_process_found_another_one_does_not_scan_for(data, job):
    scanned = Index.open(str(data), folder=job)
    with Reader.open(str(data), folder=job) as reader:
        mapped = reader.index
        assert mapped.fingerprint == scanned.fingerprint == Index.open(str(data)).fingerprint
        assert mapped.files == scanned.files
        assert mapped.tables.chunks.tolist() == scanned.tables.chunks.tolist()
        assert mapped.block_starts.tolist() == scanned.block_starts.tolist()
        assert mapped.block_counts.tolist() == scanned.block_counts.tolist()
        assert [int.from_bytes(record[:4], "little") for record in reader] == [
            *range(mapped.num_records)
        ]
        with pytest.raises(ValueError, match="read-only"):
            mapped.block_starts[0] = 1
    spoil(data / "a.recordio")
    with pytest.raises(DataError):
        Index.open(str(data), max_chunk_bytes=1 << 20)  # Another setting needs another index.
    assert Index.open(str(data)).fingerprint == scanned.fingerprint


def test_what_an_index_says_of_a_chunk_is_checked_when_it_is_read(data, job):
    Index.open(str(data), folder=job)
    path = data / "a.recordio"
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[NUMBERED_BYTES] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with (
        Reader.open(str(data), folder=job) as reader,
        pytest.raises(DataError, match=r"a\..*: chunk 0 .*checksum"),
    ):
        reader.read([0])


@dataclass(frozen=True)
class Change:
    name: str
    make: Callable[[Path], object]


CHANGES = [
    Change("a file is longer", lambda data: write_numbered(data / "a.recordio", range(30))),
    Change("other content", lambda data: write_numbered(data / "a.recordio", range(100, 120))),
    Change("another file", lambda data: write_numbered(data / "d.recordio", range(100, 105))),
    Change("a file is gone", lambda data: (data / "a.recordio").unlink()),
    Change("a file is renamed", lambda data: (data / "a.recordio").rename(data / "d.recordio")),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_files_that_have_changed_are_scanned_again(data, job, change):
    before = Index.open(str(data), folder=job).fingerprint
    change.make(data)
    now = Index.open(str(data), folder=job)
    assert now.fingerprint == Index.open(str(data)).fingerprint != before
    assert now.num_records == Index.open(str(data), folder=job).num_records


def test_an_index_is_for_the_settings_that_it_was_made_with(data, job):
    Index.open(str(data), folder=job)
    with pytest.raises(DataError, match="too large"):
        Index.open(str(data), folder=job, max_chunk_bytes=NUMBERED_BYTES)


def test_an_index_of_csv_files_keeps_their_headers(tmp_path, job):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * (SMALL_BYTES // 4))
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
        assert [Path(file.path).name for file in index.files] == [
            f"{name}.recordio" for name in "abc"
        ]
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


def edit(path: Path, change: Callable[[NDArray[Any]], None]) -> None:
    """Change the chunks of an index whose checksum fits again afterwards."""
    content = bytearray(path.read_bytes())
    magic, header_bytes, _ = struct.unpack_from("<8sQQ", content)
    length = json.loads(content[24 : 24 + header_bytes])["lengths"]["chunks"]
    change(np.frombuffer(content, CHUNK, length, 24 + header_bytes))
    struct.pack_into("<8sQQ", content, 0, magic, header_bytes, zlib.crc32(content[24:]))
    path.write_bytes(content)


def change(chunks: NDArray[Any], kind: str) -> None:
    """Make chunks of which no scan gives an index."""
    last_of_first_file = int(np.flatnonzero(chunks["offset"][1:] == 0)[0])
    match kind:
        case "duplicate":
            chunks[1] = chunks[0]
        case "overlap":
            chunks["compressed_bytes"][0] += 1
        case "past the end":
            chunks["compressed_bytes"][last_of_first_file] += 1
        case "before the file":
            chunks["offset"][0] = np.iinfo(np.int64).min
        case "no records":
            chunks["num_records"][0] = 0
        case "moved record":
            chunks["num_records"][:2] += np.array([1, -1]).astype("<u4")
        case "checksum":
            chunks["checksum"][0] ^= 1


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("duplicate", "overlap"),
        ("overlap", "overlap"),
        ("past the end", "end of a file"),
        ("before the file", "begins before"),
        ("no records", "no records"),
        ("moved record", "chunk_starts"),
        ("checksum", "fingerprint"),
    ],
)
def test_an_index_that_no_scan_gives_is_passed_over(data, caplog, kind, why):
    path = index_beside(data)
    scanned = Index.open(str(data))
    edit(path, lambda chunks: change(chunks, kind))
    with Reader.open(str(data)) as reader:
        assert [int.from_bytes(record[:4], "little") for record in reader] == [
            *range(scanned.num_records)
        ]
    assert ignored_indexes(caplog)
    assert any(why in message for message in ignored_indexes(caplog))


def test_an_index_of_chunks_of_several_blocks_is_taken(tmp_path, job, caplog):
    with Writer(tmp_path / "a.recordio", codec=Codec.NONE, chunk_bytes=8 << 20) as writer:
        for _ in range(3 * MAX_BLOCK_RECORDS):
            writer.write(bytes(SMALL_BYTES // MAX_BLOCK_RECORDS // 2))
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
