"""RecordIO: byte-exact goldens made by hand, round trips, random access, atomic writing."""

import gzip
import os
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.errors import ConfigError, DataError, OutputError
from edl_horovod.records.columns import FlatRecords
from edl_horovod.records.files.pool import FilePool
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Codec, Writer, read_chunks
from tests.unit.records.record_files import chunk_by_hand, flip_a_bit, framed, read, write

RECORDS = [b"first", b"", b"third record", b"\x00" * 300, b""]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def snappy_frame(data: bytes, *, compress: bool) -> bytes:
    crc = crc32c(data)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    body = bytes(cramjam.snappy.compress_raw(data)) if compress else data
    content = struct.pack("<I", masked) + body
    return bytes([0 if compress else 1]) + len(content).to_bytes(3, "little") + content


STREAM_START = b"\xff\x06\x00\x00sNaPpY"
PIECES = [piece for record in RECORDS for piece in (struct.pack("<I", len(record)), record)]
GOLDEN_PAYLOADS = {
    "none": (0, framed(RECORDS)),
    "snappy, 64 KiB frames": (1, STREAM_START + snappy_frame(framed(RECORDS), compress=True)),
    "snappy, one frame per length and record": (
        1,
        STREAM_START + b"".join(snappy_frame(piece, compress=False) for piece in PIECES if piece),
    ),
    "snappy, compressed frame per length and record": (
        1,
        STREAM_START + b"".join(snappy_frame(piece, compress=True) for piece in PIECES),
    ),
    "gzip": (2, gzip.compress(framed(RECORDS))),
    "gzip, two members": (
        2,
        gzip.compress(framed(RECORDS)[:9]) + gzip.compress(framed(RECORDS)[9:]),
    ),
}


@pytest.mark.parametrize("name", GOLDEN_PAYLOADS)
def test_reads_golden_bytes(tmp_path, name):
    codec, payload = GOLDEN_PAYLOADS[name]
    content = chunk_by_hand(payload, codec=codec, num_records=len(RECORDS))
    path = tmp_path / "golden.recordio"
    path.write_bytes(content + content)

    assert read(path) == RECORDS + RECORDS
    with Reader.open(str(path)) as reader:
        assert len(reader) == 2 * len(RECORDS)
        assert reader.read([7]) == [b"third record"]


def test_reads_the_literal_bytes_of_a_one_record_file(tmp_path):
    path = tmp_path / "golden.recordio"
    path.write_bytes(bytes.fromhex("04030201 335de166 00000000 07000000 01000000 03000000 616263"))
    assert read(path) == [b"abc"]


@pytest.mark.parametrize("codec", Codec)
def test_writes_the_20_byte_header_and_the_same_file_for_the_same_records(tmp_path, codec):
    data, again = (write(tmp_path / name, RECORDS, codec=codec).read_bytes() for name in "ab")
    assert again == data
    payload = data[20:]
    code = {Codec.NONE: 0, Codec.SNAPPY: 1, Codec.GZIP: 2}[codec]
    assert data == chunk_by_hand(payload, codec=code, num_records=len(RECORDS))
    raw = {
        Codec.NONE: lambda: payload,
        Codec.SNAPPY: lambda: bytes(cramjam.snappy.decompress(payload)),
        Codec.GZIP: lambda: gzip.decompress(payload),
    }[codec]()
    assert raw == framed(RECORDS)


def test_writes_one_snappy_stream_per_chunk(tmp_path):
    records = (os.urandom(10_000) for _ in range(30))
    path = write(tmp_path / "out.recordio", records, codec=Codec.SNAPPY, chunk_bytes=100_000)

    data = path.read_bytes()
    chunks = read_chunks(str(path)).chunks
    assert len(chunks) == 4
    for chunk in chunks:
        payload = data[chunk.payload_offset : chunk.end_offset]
        assert payload.startswith(STREAM_START)
        assert payload.count(STREAM_START) == 1


@settings(max_examples=60)
@given(
    records=st.lists(st.binary(max_size=60), min_size=1, max_size=80),
    codec=st.sampled_from(Codec),
    chunk_bytes=st.integers(1, 500),
    cache_bytes=st.sampled_from([0, 500, 1 << 20]),
    data=st.data(),
)
def test_any_records_round_trip_in_any_order(records, codec, chunk_bytes, cache_bytes, data):
    ids = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=100))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.recordio")
        write(path, records, codec=codec, chunk_bytes=chunk_bytes)

        with Reader.open(str(path), cache_bytes=cache_bytes) as reader:
            assert len(reader) == len(records)
            assert list(reader) == records
            assert reader.read(ids) == [records[i] for i in ids]
            assert reader.read(np.array(ids, dtype=np.int32)) == [records[i] for i in ids]
            assert all(type(record) is bytes for record in reader.read(ids))


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=40), chunk=st.integers(4, 1000))
def test_chunks_hold_at_most_chunk_bytes_unless_one_record_is_larger(sizes, chunk):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.recordio")
        write(path, (b"x" * size for size in sizes), codec=Codec.NONE, chunk_bytes=chunk)

        chunks = read_chunks(str(path)).chunks
        assert all(c.compressed_bytes <= chunk or c.num_records == 1 for c in chunks)
        assert sum(c.num_records for c in chunks) == len(sizes)


@pytest.mark.parametrize(
    ("records", "options"),
    [
        # The first has a stride; the second has the same total size but another length inside.
        ([b"aaaa", b"bbbb", b"cccc"], {"codec": Codec.NONE}),
        ([b"aaaa", b"bbb", b"ccccc"], {"codec": Codec.NONE}),
        ([np.int32(n).tobytes() for n in range(300)], {"chunk_bytes": 512}),
    ],
    ids=["equal lengths", "any lengths", "zeros at the ends"],
)
def test_records_are_split_as_they_were_written(tmp_path, records, options):
    records_read = read(write(tmp_path / "x", records, **options))
    assert records_read == records
    assert all(type(record) is bytes for record in records_read)


def test_file_without_records_is_empty_and_valid(tmp_path):
    path = write(tmp_path / "empty.recordio", [])

    assert path.read_bytes() == b""
    assert read_chunks(str(path)).chunks == ()
    assert read_chunks(str(path), damaged="skip").chunks == ()


def test_accepts_buffers_that_the_caller_changes_afterwards(tmp_path):
    buffer = bytearray(b"before")
    with Writer(tmp_path / "x") as writer:
        writer.write(buffer)
        writer.write(memoryview(b"view"))
        buffer[:] = b"after!"

    assert read(tmp_path / "x") == [b"before", b"view"]


def test_oversize_record_is_refused(tmp_path):
    with Writer(tmp_path / "x", codec=Codec.NONE) as writer:
        writer.write(b"kept")
        with pytest.raises(DataError, match=r"33554432 .*33554432"):
            writer.write(bytes(32 << 20))
        writer.write(bytes((32 << 20) - 1))

    assert [len(record) for record in read(tmp_path / "x")] == [4, (32 << 20) - 1]


@pytest.mark.parametrize("chunk_bytes", [0, -1, (32 << 20) + 1])
def test_chunk_bytes_out_of_bounds_is_refused(tmp_path, chunk_bytes):
    with pytest.raises(ConfigError, match=f"chunk_bytes={chunk_bytes}"):
        Writer(tmp_path / "x", chunk_bytes=chunk_bytes)

    assert list(tmp_path.iterdir()) == []


def test_text_is_refused_and_its_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.recordio"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write(path, [*[b"new record"] * 100, "text"], chunk_bytes=10)

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_abort_leaves_nothing_and_close_after_it_does_nothing(tmp_path):
    writer = Writer(tmp_path / "x")
    writer.write(b"a")
    writer.abort()
    writer.close()

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"b")


def test_file_has_its_name_once_it_is_complete_and_keeps_it_afterwards(tmp_path):
    writer = Writer(tmp_path / "x", chunk_bytes=1)
    writer.write(b"a")
    writer.write(b"b")

    assert [p.name for p in tmp_path.iterdir()] == [f".x.{os.getpid()}.partial"]
    for end in (writer.close, writer.close, writer.abort):
        end()
        assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_crash_leaves_the_old_file(tmp_path):
    path = write(tmp_path / "x.recordio", [b"old"])
    program = (
        "import os, sys; from edl_horovod.records.sources.recordio import Writer\n"
        "w = Writer(sys.argv[1], chunk_bytes=1); w.write(b'new'); w.write(b'new'); os._exit(9)"
    )

    crashed = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60, check=False)

    assert crashed.returncode == 9
    assert read(tmp_path) == [b"old"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing/x", "No such"), ("file/x", "Not a directory"), ("folder", "Is a directory")],
)
def test_target_that_cannot_be_written_is_an_output_error(tmp_path, name, message):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=message):
        write(tmp_path / name, [b"a"])

    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_an_output_error_and_leaves_nothing(tmp_path):
    # The temporary name is taken by a link to a device that is always full.
    partial = tmp_path / f".x.{os.getpid()}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space"):
        write(tmp_path / "x", [b"a"])

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        *((ids, IndexError, "from 0 to 2") for ids in ([-1], [3], [0, 1, 2, 3], [2**62])),
        (np.array([0.5]), TypeError, "float64"),
    ],
)
def test_record_ids_that_there_are_not_are_refused(tmp_path, ids, error, message):
    path = write(tmp_path / "x", [b"a", b"b", b"c"])

    with Reader.open(str(path)) as reader, pytest.raises(error, match=message):
        reader.read(ids)


def test_closed_reader_refuses_to_read(tmp_path):
    reader = Reader.open(str(write(tmp_path / "x", [b"a"])))
    reader.close()
    reader.close()

    with pytest.raises(ValueError, match="closed"):
        reader.read([0])


def test_threads_read_what_one_thread_reads(tmp_path):
    records = [bytes([n % 251]) * (n % 97) for n in range(3000)]
    for part in range(3):
        part_records = records[part * 1000 : (part + 1) * 1000]
        write(tmp_path / f"{part}.recordio", part_records, chunk_bytes=2000)
    batches = np.random.default_rng(0).integers(0, 3000, size=(60, 50))

    with Reader.open(str(tmp_path), cache_bytes=20_000) as reader, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(reader.read, batches))

    assert answers == [[records[i] for i in batch] for batch in batches]


def test_damaged_chunk_raises_in_every_thread_that_waits_for_it(tmp_path):
    path = write(tmp_path / "x", [b"a" * 100_000], codec=Codec.NONE)
    flip_a_bit(path, 500)

    with Reader.open(str(path)) as reader, ThreadPoolExecutor(4) as pool:
        errors = [pool.submit(reader.read, [0]).exception() for _ in range(20)]

    assert all(isinstance(error, DataError) for error in errors)


def test_pool_keeps_few_files_open(tmp_path):
    paths = [str(tmp_path / str(n)) for n in range(20)]
    for path in paths:
        Path(path).write_text(path)
    before = len(os.listdir("/proc/self/fd"))
    pool = FilePool(max_idle=3)

    contents = [pool.read_at(path, offset=0, num_bytes=1000).decode() for path in paths * 2]

    assert contents == paths * 2
    assert len(os.listdir("/proc/self/fd")) == before + 3
    pool.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_chunks_that_a_step_lacks_are_decoded_side_by_side(tmp_path):
    path = write(tmp_path / "x", [b"one", b"two"], chunk_bytes=1)
    both = threading.Barrier(2)

    class TwoAtOnce(Reader):
        def load_chunk(self, chunk_number: int) -> FlatRecords:
            both.wait(timeout=10)
            return super().load_chunk(chunk_number)

    with TwoAtOnce.open(str(path)) as reader:
        assert reader.read([1, 0]) == [b"two", b"one"]


def test_memory_counts_what_lies_between_records():
    starts, ends = np.array([0]), np.array([1])

    records = FlatRecords(b"x" + b"\n" * 1000, starts, ends)

    assert records.held_bytes >= 1001
    assert list(records) == [records[0]] == [b"x"]
