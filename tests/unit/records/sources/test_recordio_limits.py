"""What a chunk may hold: a small file from somewhere else does not take the memory of a host."""

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.job_data import open_source
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Codec, read_chunks
from edl_horovod.records.sources.recordio_format import MAX_CHUNK_BYTES, max_chunk_records
from tests.unit.records.record_files import chunk_by_hand, framed, read, write

MIB = 1 << 20


def chunk(payload: bytes, *, codec: Codec, num_records: int) -> bytes:
    compressed = {
        Codec.NONE: bytes,
        Codec.SNAPPY: lambda data: bytes(cramjam.snappy.compress(data)),
        Codec.GZIP: lambda data: gzip.compress(data, 9, mtime=0),
    }[codec](payload)
    return chunk_by_hand(compressed, codec=codec, num_records=num_records)


BOMB_BYTES = 45_000_000
BOMBS = {
    "one large record": (framed([bytes(BOMB_BYTES - 4)]), 1, Codec.GZIP),
    "empty records": (bytes(BOMB_BYTES), BOMB_BYTES // 4, Codec.GZIP),
    "empty records, told as few": (bytes(BOMB_BYTES), 1, Codec.GZIP),
    "records of two bytes": (framed([b"ab"]) * (BOMB_BYTES // 6), BOMB_BYTES // 6, Codec.GZIP),
    "as many records as fit into what is accepted": (bytes(32 * MIB), 8 * MIB, Codec.GZIP),
    "snappy": (framed([bytes(BOMB_BYTES - 4)]), 1, Codec.SNAPPY),
}


# VmHWM is of this program alone; the ru_maxrss of a child begins with that of its parent.
READ_IT_ALL = """
import re, sys
from edl_horovod.records.reader import Reader
from edl_horovod.errors import DataError

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

before = peak()
try:
    with Reader.open(sys.argv[1], damaged=sys.argv[2]) as reader:
        for record in reader:
            pass
except DataError as e:
    print(peak() - before, e)
"""


@pytest.mark.long(after=1)
@pytest.mark.parametrize("damaged", ["raise", "skip"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_no_more_memory_than_one_chunk_of_ours(tmp_path, name, damaged):
    payload, num_records, codec = BOMBS[name]
    path = tmp_path / "bomb.recordio"
    path.write_bytes(chunk(payload, codec=codec, num_records=num_records))
    assert path.stat().st_size < (3 * MIB if codec is Codec.SNAPPY else 70_000)

    command = [sys.executable, "-c", READ_IT_ALL, str(path), damaged]
    read = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert read.stdout, read.stderr
    grown_kb, message = read.stdout.split(" ", 1)
    assert ("too large" if damaged == "raise" else "no records in the data") in message
    # What is decompressed before it is stopped, and what is compressed.
    assert int(grown_kb) < 48 * 1024, read.stdout


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.GZIP])
def test_a_chunk_that_expands_too_far_is_told_with_place_sizes_and_setting(tmp_path, codec):
    path = tmp_path / "x.recordio"
    good = chunk(framed([b"good"]), codec=codec, num_records=1)
    large = chunk(framed([bytes(2000)]), codec=codec, num_records=1)
    path.write_bytes(good + large)

    with Reader.open(str(path), max_chunk_bytes=2003) as reader:
        assert reader.read([0]) == [b"good"]
        with pytest.raises(DataError) as caught:
            reader.read([1])

    text = str(caught.value)
    assert text.startswith(f"{path}: chunk 1 at byte {len(good)} is too large")
    assert f"{len(large) - 20} bytes" in text
    assert caught.value.received == {"data_plan.max_chunk_bytes": 2003}
    assert "data_plan.max_chunk_bytes" in caught.value.hint


def test_records_and_bytes_are_counted_before_the_payload_is_read(tmp_path):
    (tmp_path / "many").write_bytes(chunk(bytes(4 * 65), codec=Codec.NONE, num_records=65))
    (tmp_path / "long").write_bytes(chunk(framed([bytes(2045)]), codec=Codec.NONE, num_records=1))

    with pytest.raises(DataError, match=r"65 records.* 64\b.* 32 bytes"):
        read_chunks(str(tmp_path / "many"), max_chunk_bytes=2048)
    with pytest.raises(DataError, match=r"2049 bytes.* 2048\b"):
        read_chunks(str(tmp_path / "long"), max_chunk_bytes=2048)


def test_skip_says_that_a_chunk_was_too_large(tmp_path, caplog):
    path = tmp_path / "x.recordio"
    large = chunk(framed([bytes(5000)]), codec=Codec.GZIP, num_records=1)
    path.write_bytes(large + chunk(framed([b"good"]), codec=Codec.GZIP, num_records=1))

    with Reader.open(str(path), damaged="skip", max_chunk_bytes=2048) as reader:
        assert list(reader) == [b"good"]

    assert "too large" in caplog.text
    assert "bytes=2048" in caplog.text


@pytest.mark.long
@settings(max_examples=200)
@given(
    records=st.lists(st.binary(max_size=300) | st.just(b""), min_size=1, max_size=60),
    codec=st.sampled_from(Codec),
    limit=st.integers(32, 4000),
)
def test_a_chunk_is_read_whole_if_it_is_within_the_limit_and_else_not_at_all(records, codec, limit):
    payload = framed(records)
    fits = len(payload) <= limit and len(records) <= max_chunk_records(limit)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.recordio")
        data = chunk(payload, codec=codec, num_records=len(records))
        Path(path).write_bytes(data)
        # Only where compressing doubles a chunk of a few bytes is one refused that would fit.
        if fits and len(data) - 20 <= 2 * limit:
            with Reader.open(path, max_chunk_bytes=limit) as reader:
                assert list(reader) == records
        else:
            with pytest.raises(DataError, match="too large"):
                list(Reader.open(path, max_chunk_bytes=limit))


@settings(max_examples=200)
@given(
    payload=st.binary(max_size=200),
    repeated=st.integers(1, 3000),
    codec=st.sampled_from([Codec.SNAPPY, Codec.GZIP]),
    cut=st.integers(0, 30),
    num_records=st.integers(1, 64),
)
def test_no_payload_unpacks_to_more_than_the_limit(payload, repeated, codec, cut, num_records):
    whole = chunk(payload * repeated, codec=codec, num_records=num_records)
    packed = whole[20 : len(whole) - cut]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.recordio")
        Path(path).write_bytes(chunk_by_hand(packed, codec=codec, num_records=num_records))
        try:
            with Reader.open(path, max_chunk_bytes=2048) as reader:
                records = list(reader)
        except DataError:
            return
    assert len(records) == num_records
    assert sum(map(len, records)) + 4 * num_records <= 2048


@pytest.mark.long(after=1)
@pytest.mark.parametrize("codec", Codec)
def test_the_largest_that_the_writer_makes_is_read_without_a_setting(tmp_path, codec):
    path = tmp_path / "x.recordio"
    largest = os.urandom(MAX_CHUNK_BYTES - 4)  # Nothing compresses it.
    records = [largest, *[largest[: 8 * MIB - 4]] * 4]
    write(path, records, codec=codec, chunk_bytes=32 * MIB)

    with Reader.open(str(path)) as reader:
        assert reader.index.tables.chunks["num_records"].tolist() == [1, 4]
        assert reader.read([0]) == [largest]
        assert reader.read([4]) == [largest[: 8 * MIB - 4]]


def test_the_writer_makes_no_chunk_of_more_records_than_are_read(tmp_path):
    path = tmp_path / "x.recordio"
    most = max_chunk_records(MAX_CHUNK_BYTES)
    write(path, [b""] * (most + 1), codec=Codec.NONE, chunk_bytes=32 * MIB)

    assert [c.num_records for c in read_chunks(str(path)).chunks] == [most, 1]


def test_the_setting_admits_larger_chunks_for_a_job(tmp_path):
    path = tmp_path / "large.recordio"
    records = [bytes(33 * MIB), b"more"]
    path.write_bytes(chunk(framed(records), codec=Codec.SNAPPY, num_records=2))

    with open_source(str(path), DataConfig(max_chunk_bytes=40 * MIB)) as reader:
        assert list(reader) == records
    usual = open_source(str(path), DataConfig())
    with usual as reader, pytest.raises(DataError, match="large"):
        reader.read([1])


def test_the_default_of_the_setting_is_what_the_writer_may_make():
    assert DataConfig().max_chunk_bytes == MAX_CHUNK_BYTES
    with pytest.raises(ConfigError, match="bytes must"):
        DataConfig(max_chunk_bytes=0)


def test_gzip_members_are_unpacked_in_time_that_grows_with_their_size(tmp_path):
    # Each member ends somewhere else in the payload; copying the rest each time took minutes.
    packed = gzip.compress(b"", mtime=0) * 100_000 + gzip.compress(framed([b"end"]), mtime=0)
    (tmp_path / "x").write_bytes(chunk_by_hand(packed, codec=Codec.GZIP, num_records=1))

    assert read(tmp_path / "x") == [b"end"]
