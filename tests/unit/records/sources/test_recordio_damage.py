"""Damaged RecordIO files: an error or the right records, never a crash or a silent loss."""

import logging
import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cramjam
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.index import Index
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import ChunkInfo, Codec, read_chunks
from tests.unit.records.record_files import chunk_by_hand, framed, write

NUM_CHUNKS = 5
CHUNK_RECORDS = [[b"record %d of chunk %d" % (n, chunk) for n in range(3)] for chunk in range(5)]
ALL_RECORDS = [record for records in CHUNK_RECORDS for record in records]


@dataclass(frozen=True)
class Valid:
    """A file of five chunks with three records each, and its bytes cut into chunks."""

    data: bytes
    chunks: tuple[ChunkInfo, ...]

    @property
    def pieces(self) -> list[bytes]:
        return [self.data[c.offset : c.end_offset] for c in self.chunks]


def make_valid(codec: Codec) -> Valid:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        write(path, ALL_RECORDS, codec=codec, chunk_bytes=3 * (4 + len(ALL_RECORDS[0])))
        chunks = read_chunks(str(path)).chunks
        assert [c.num_records for c in chunks] == [3] * NUM_CHUNKS
        return Valid(path.read_bytes(), chunks)


VALID = {codec: make_valid(codec) for codec in Codec}


def read_all(data: bytes, *, damaged: str) -> tuple[list[bytes], int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.recordio")
        Path(path).write_bytes(data)
        with Reader.open(path, damaged=damaged) as reader:
            records = reader.read(range(len(reader)))
            assert list(reader) == records
            (file,) = reader.index.files
            return records, file.skipped_chunks, file.skipped_records


def whole_chunks(records: list[bytes]) -> list[int] | None:
    """The numbers of the chunks that make these records, or None if a chunk is not whole."""
    groups = [records[i : i + 3] for i in range(0, len(records), 3)]
    if not all(group in CHUNK_RECORDS for group in groups):
        return None
    return [CHUNK_RECORDS.index(group) for group in groups]


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Codec, bytes]:
    """A valid file after one to three changes of its bytes."""
    codec = draw(st.sampled_from(Codec))
    data = bytearray(VALID[codec].data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "set", "truncate", "insert", "delete"])):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "set" if at + 4 <= len(data):
                data[at : at + 4] = struct.pack("<I", draw(st.integers(0, 2**32 - 1)))
            case "truncate":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=40))
            case "delete":
                del data[at : at + draw(st.integers(1, 60))]
    return codec, bytes(data)


def is_made_of_whole_chunks(codec: Codec, data: bytes) -> bool:
    """Whether the change only took whole chunks away, which the format cannot show."""
    pieces = VALID[codec].pieces
    present = [piece for piece in pieces if piece in data]
    return b"".join(present) == data


@pytest.mark.long
@settings(max_examples=400)
@given(mutations())
def test_changed_bytes_give_an_error_or_the_written_records(changed):
    codec, data = changed
    assume(not is_made_of_whole_chunks(codec, data))
    try:
        records, _, _ = read_all(data, damaged="raise")
    except DataError:
        return
    assert records == ALL_RECORDS


@pytest.mark.long
@settings(max_examples=400)
@given(mutations())
def test_skip_gives_whole_good_chunks_in_order_and_counts_the_rest(changed):
    codec, data = changed
    try:
        records, skipped_chunks, _ = read_all(data, damaged="skip")
    except DataError as e:
        if "no records in the data" not in str(e):
            raise
        return
    numbers = whole_chunks(records)
    assert numbers is not None
    assert numbers == sorted(set(numbers))
    if len(numbers) < NUM_CHUNKS and not is_made_of_whole_chunks(codec, data):
        assert skipped_chunks >= 1


@settings(max_examples=150)
@given(
    codec=st.sampled_from(Codec),
    number=st.integers(0, NUM_CHUNKS - 1),
    place=st.floats(0, 1, exclude_max=True),
    mask=st.integers(1, 255),
)
def test_skip_leaves_out_just_the_chunk_with_a_flipped_payload_byte(codec, number, place, mask):
    valid = VALID[codec]
    chunk = valid.chunks[number]
    data = bytearray(valid.data)
    data[chunk.payload_offset + int(place * chunk.compressed_bytes)] ^= mask

    records, skipped_chunks, skipped_records = read_all(bytes(data), damaged="skip")

    assert whole_chunks(records) == [n for n in range(NUM_CHUNKS) if n != number]
    assert (skipped_chunks, skipped_records) == (1, 3)


@settings(max_examples=60)
@given(st.binary(max_size=200), st.sampled_from(["raise", "skip"]))
def test_arbitrary_bytes_are_a_data_error(data, damaged):
    with pytest.raises(DataError):
        read_all(data, damaged=damaged)


@settings(max_examples=150)
@given(payload=st.binary(max_size=200), codec=st.sampled_from(Codec), count=st.integers(1, 9))
def test_wrong_payload_of_a_right_checksum_is_a_data_error_or_consistent(payload, codec, count):
    if codec is Codec.SNAPPY:
        payload = b"\xff\x06\x00\x00sNaPpY" + payload
    data = chunk_by_hand(payload, codec=codec, num_records=count)
    try:
        records, _, _ = read_all(data, damaged="raise")
    except DataError:
        return
    assert len(records) == count


def change(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def header_field(at: int, new: bytes) -> Callable[[bytes, ChunkInfo], bytes]:
    """Puts other bytes at an offset of the chunk's header."""
    return lambda data, chunk: change(data, chunk.offset + at, new)


@dataclass(frozen=True)
class Damage:
    """What is done to chunk 2 of a valid file, and what is said about it."""

    name: str
    apply: Callable[[bytes, ChunkInfo], bytes]
    message: str
    is_found_at_open: bool = True
    left: tuple[int, ...] = (0, 1, 3, 4)
    skipped_records: int = 3


DAMAGES = [
    Damage(
        "payload byte",
        lambda data, c: change(data, c.payload_offset, b"\xaa"),
        r"checksum .* 0x\w{8}, .* 0x\w{8}",
        is_found_at_open=False,
    ),
    Damage("checksum field", header_field(4, b"\0\0\0\0"), "checksum", is_found_at_open=False),
    Damage("magic", header_field(0, b"ABCD"), "41 42 43 44, .* 04 03 02 01", skipped_records=0),
    Damage(
        "codec",
        header_field(8, b"\7"),
        r"codec is 7, .* 0 \(none\), 1 \(snappy\), 2 \(gzip\)",
        skipped_records=0,
    ),
    Damage(
        "count too large",
        header_field(16, b"\4"),
        "record 3 of 4",
        is_found_at_open=False,
        skipped_records=4,
    ),
    Damage(
        "count too small",
        header_field(16, b"\2"),
        "left after its 2 records",
        is_found_at_open=False,
        skipped_records=2,
    ),
    Damage("count zero", header_field(16, b"\0"), "says 0 records", skipped_records=0),
    Damage(
        "count absurd", header_field(16, b"\xff\xff\xff\x7f"), " 2147483647 ", skipped_records=0
    ),
    Damage("size past the end", header_field(12, b"\xff\xff\0\0"), "ends after .* 65535 "),
    Damage("size absurd", header_field(12, b"\xff\xff\xff\xff"), "ends after .* 4294967295 "),
    Damage(
        "cut in a payload",
        lambda data, c: data[: c.payload_offset + 5],
        "ends after 5 of",
        left=(0, 1),
    ),
    Damage(
        "cut in a header",
        lambda data, c: data[: c.offset + 7],
        "ends after 7 of",
        left=(0, 1),
        skipped_records=0,
    ),
    Damage(
        "bytes inserted in a payload",
        lambda data, c: data[: c.payload_offset] + b"junk" + data[c.payload_offset :],
        "chunk 3 at .* chunk 2 does not end",
    ),
    Damage(
        "bytes deleted from a payload",
        lambda data, c: data[: c.payload_offset] + data[c.payload_offset + 7 :],
        "chunk 3 at .* chunk 2 does not end",
    ),
    Damage(
        "junk between chunks",
        lambda data, c: data[: c.offset] + b"junk \4\3\2\1 junk" + data[c.offset :],
        "starts with 6a 75 6e 6b",
        left=(0, 1, 2, 3, 4),
        skipped_records=0,
    ),
]


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
def test_damage_is_named_with_its_place_and_may_be_skipped(tmp_path, caplog, case):
    valid = VALID[Codec.NONE]
    chunk = valid.chunks[2]
    path = tmp_path / "bad.recordio"
    path.write_bytes(case.apply(valid.data, chunk))

    if case.is_found_at_open:
        with pytest.raises(DataError, match=case.message) as caught:
            Index.open([str(path)])
    else:
        with Reader.open(str(path)) as reader:
            assert reader.read([0]) == [ALL_RECORDS[0]]
            with pytest.raises(DataError, match=case.message) as caught:
                list(reader)
    text = str(caught.value)
    assert str(path) in text
    assert "damaged=skip" in text
    if "chunk 3" not in case.message:
        assert f"chunk 2 at byte {chunk.offset}" in text

    # With skip the rest is read, and what is left out is counted and warned of once.
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING, logger="edl_horovod"),
        Reader.open(str(path), damaged="skip") as reader,
    ):
        assert whole_chunks(list(reader)) == list(case.left)
    (file,) = reader.index.files
    assert (file.skipped_chunks, file.skipped_records) == (1, case.skipped_records)
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


def test_two_damaged_chunks_in_a_row_are_two_skips():
    valid = VALID[Codec.SNAPPY]
    data = change(valid.data, valid.chunks[1].payload_offset + 12, b"\xaa\xaa\xaa")
    data = change(data, valid.chunks[2].payload_offset + 12, b"\xaa\xaa\xaa")

    records, skipped_chunks, skipped_records = read_all(data, damaged="skip")

    assert whole_chunks(records) == [0, 3, 4]
    assert (skipped_chunks, skipped_records) == (2, 6)


def test_good_chunk_is_found_across_the_blocks_of_the_search():
    good = VALID[Codec.SNAPPY].pieces[0]
    for distance in range((1 << 20) - 6, (1 << 20) + 6):
        records, skipped_chunks, _ = read_all(b"j" * distance + good, damaged="skip")
        assert records == CHUNK_RECORDS[0]
        assert skipped_chunks == 1


def test_file_inside_a_damaged_record_is_not_taken_for_chunks():
    inner = VALID[Codec.SNAPPY].data
    outer = bytearray(chunk_by_hand(framed([inner]), codec=0, num_records=1))
    outer[4] ^= 1
    good = chunk_by_hand(framed([b"good"]), codec=0, num_records=1)

    records, skipped_chunks, skipped_records = read_all(bytes(outer) + good, damaged="skip")

    assert records == [b"good"]
    assert (skipped_chunks, skipped_records) == (1, 1)


def test_damage_after_skip_made_the_index_is_an_error(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(VALID[Codec.NONE].data)
    with Reader.open(str(path), damaged="skip") as reader:
        path.write_bytes(VALID[Codec.NONE].data[:-1])
        with pytest.raises(DataError, match=r"chunk 4 .* ends"):
            list(reader)


def test_unknown_policy_is_refused_with_the_allowed_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"'skipp'.*'skip'"):
        read_chunks(str(tmp_path / "x"), damaged="skipp")


def foreign_file(*, codec: int, num_chunks: int) -> bytes:
    """As pyrecordio 0.0.1 to 0.0.4 wrote it: count, CRC-32C, codec + 1, size."""
    payload = framed([b"hello"])
    if codec == 2:
        payload = bytes(cramjam.snappy.compress_raw(payload))
    header = struct.pack("<IIIII", 0x01020304, 1, 0xDEADBEEF, codec, len(payload))
    return (header + payload) * num_chunks


@pytest.mark.parametrize("damaged", ["raise", "skip"])
@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize(("num_chunks", "cut"), [(1, 0), (4, 0), (4, 3)])
def test_foreign_layout_is_recognised(codec, num_chunks, cut, damaged):
    data = foreign_file(codec=codec, num_chunks=num_chunks)
    with pytest.raises(DataError, match=r"pyrecordio 0\.0\.1 to 0\.0\.4"):
        read_all(data[: len(data) - cut], damaged=damaged)


# The first record of a file that tf.io.TFRecordWriter made: b"hello".
TFRECORD = bytes.fromhex("0500000000000000 eab2043e 68656c6c6f bb1f1c19")


@pytest.mark.parametrize("damaged", ["raise", "skip"])
@pytest.mark.parametrize("data", [TFRECORD, TFRECORD * 3, TFRECORD[:12]])
def test_a_tfrecord_file_is_called_one_with_what_to_do(data, damaged):
    with pytest.raises(DataError, match="TFRecord") as caught:
        read_all(data, damaged=damaged)

    assert "damaged" not in str(caught.value)
    assert ".tfrecord" in str(caught.value)


@pytest.mark.parametrize(
    "start", [b"id,age\n1,2\n3,4\n5,6\n", b"PAR1" * 9, TFRECORD[:11] + b"x" * 9]
)
def test_a_file_of_no_known_format_is_not_called_damaged_alone(start):
    with pytest.raises(DataError) as caught:
        read_all(start, damaged="raise")

    text = str(caught.value)
    assert start[:4].hex(" ") in text
    assert ".csv" in text
    assert "damaged=skip" in text  # The start of a RecordIO file may be damaged.


def test_damaged_header_of_our_layout_is_not_called_foreign():
    valid = VALID[Codec.SNAPPY]
    data = change(valid.data, valid.chunks[0].offset + 8, b"\xee\xee\xee\xee")
    with pytest.raises(DataError, match="codec is 4008636142"):
        read_all(data, damaged="raise")
