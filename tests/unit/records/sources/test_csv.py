"""CSV as records: the rows that Python's csv module sees, in chunks, or an error with the byte."""

import csv
import io
import itertools
import logging
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.errors import DataError
from edl_horovod.records.index import Index
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources import csv_format
from edl_horovod.records.sources.csv_format import MAX_ROW_BYTES, find_rows
from tests.unit.records.record_files import read, write


def written(folder: Path, data: bytes) -> Path:
    path = folder / "x.csv"
    path.write_bytes(data)
    return path


def parsed(text: str, delimiter: str = ",") -> list[list[str]]:
    """The rows by Python's csv module, empty lines left out."""
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]


TEXTS = {
    "plain": (b"a,b\n1,2\n3,4\n", [b"1,2", b"3,4"]),
    "no final newline": (b"a,b\n1,2\n3,4", [b"1,2", b"3,4"]),
    "CRLF": (b"a,b\r\n1,2\r\n3,4\r\n", [b"1,2", b"3,4"]),
    "CR alone": (b"a,b\r1,2\r3,4\r", [b"1,2", b"3,4"]),
    "empty lines": (b"\n\na,b\n\n1,2\n\r\n\n3,4\n\n", [b"1,2", b"3,4"]),
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", [b"1,2"]),
    "quoted newline": (b'a,b\n"x\ny",2\n3,4\n', [b'"x\ny",2', b"3,4"]),
    "quoted CRLF": (b'a,b\r\n"x\r\ny",2\r\n', [b'"x\r\ny",2']),
    "doubled quotes": (b'a,b\n"""x""\n",2\n3,4\n', [b'"""x""\n",2', b"3,4"]),
    "empty quoted field": (b'a,b\n"",2\n3,""\n', [b'"",2', b'3,""']),
    "header over two lines": (b'"a\nb",c\n1,2\n', [b"1,2"]),
    "quote at the very end": (b'a,b\n1,"2"', [b'1,"2"']),
    "semicolons": (b'a;b\n1;"2\n3"\n', [b'1;"2\n3"']),
    "tabs": (b'a\tb\n1\t"2\n3"\n', [b'1\t"2\n3"']),
    "spaces count": (b"a,b\n 1 , 2 \n \n", [b" 1 , 2 ", b" "]),
    "other encodings": ("a,b\nä,ß\n".encode("latin-1"), ["ä,ß".encode("latin-1")]),
}


@pytest.mark.parametrize(("data", "records"), TEXTS.values(), ids=TEXTS)
def test_rows(tmp_path, data, records):
    assert read(written(tmp_path, data)) == records


def test_first_line_is_a_record_without_a_header(tmp_path):
    assert read(written(tmp_path, b"1,2\n3,4\n"), csv_header=False) == [b"1,2", b"3,4"]


def test_different_headers_are_refused(tmp_path):
    (tmp_path / "1.csv").write_bytes(b"a,b\n1,2\n")
    (tmp_path / "2.csv").write_bytes(b"b,a\n1,2\n")

    with pytest.raises(DataError, match=r"1\.csv.*b'a,b'.*2\.csv.*b'b,a'"):
        Index.open(str(tmp_path))


def test_formats_do_not_mix(tmp_path):
    written(tmp_path, b"a,b\n1,2\n")
    write(tmp_path / "y.recordio", [b"y"])
    with pytest.raises(DataError, match=r"x\.csv.*y\.recordio"):
        Index.open(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8b\x08\x00rest", "gzip"),
        (b"PK\x03\x04rest", "spreadsheet"),
        (b"1,2.5\n3,4\n", "header=false"),
    ],
)
def test_what_is_no_text_or_has_a_header_of_numbers_is_refused(tmp_path, data, kind):
    with pytest.raises(DataError, match=kind):
        read(written(tmp_path, data))


DAMAGES = {
    "quote never closed": (
        b'a,b\n1,2\n3,"4\n5,6\n',
        "byte 10, .* byte 8, .*never",
        [b"1,2", b"5,6"],
    ),
    "after doubled quotes": (b'a,b\n"""1,2\n3,4\n', "byte 4, .* byte 4, .*never", [b"3,4"]),
    "quote inside a field": (b'a,b\n1,5" disk\n3,4\n', "byte 7, .* byte 4, neither", [b"3,4"]),
    "text after a quoted field": (b'a,b\n"1"x,2\n3,4\n', "byte 6, .* neither", [b"3,4"]),
    "row over two lines": (
        b'a,b\n"1\n2,2\n3,"4"\n5,6\n',
        "byte 13, .* byte 4, neither",
        [b"2,2", b'3,"4"', b"5,6"],
    ),
}


@pytest.mark.parametrize(("data", "message", "records"), DAMAGES.values(), ids=DAMAGES)
def test_damage_names_its_byte_and_is_skipped_on_request(tmp_path, data, message, records, caplog):
    path = written(tmp_path, data)
    with pytest.raises(DataError, match=rf"x\.csv .*{message}"):
        read(path)

    with caplog.at_level(logging.WARNING):
        assert read(path, damaged="skip") == records

    assert Index.open([str(path)], damaged="skip").files[0].skipped_records == 1
    assert "damaged=skip" in caplog.text


def test_damaged_header_is_an_error_even_if_damage_is_skipped(tmp_path):
    with pytest.raises(DataError, match="byte 1"):
        read(written(tmp_path, b'a",b\n1,2\n'), damaged="skip")


def test_row_without_an_end_is_not_read_for_ever(tmp_path):
    path, row = tmp_path / "x.csv", b"5," + b"6" * 100_000
    rows = [row] * (MAX_ROW_BYTES // len(row) + 1)
    path.write_bytes(b'a,b\n1,2\n"3,4\n' + b"".join(row + b"\n" for row in rows))

    with pytest.raises(DataError, match=rf"byte 8 .* {MAX_ROW_BYTES} bytes"):
        read(path)
    assert read(path, damaged="skip") == [b"1,2", *rows]


def test_file_that_changed_since_is_an_error(tmp_path):
    path = written(tmp_path, b"a,b\n1,2\n3,4\n")
    index = Index.open([str(path)])
    path.write_bytes(b"a,b\n1,2\n3,5\n")

    with Reader(index) as reader, pytest.raises(DataError, match=r"x\.csv .*changed"):
        reader.read([0])


def test_large_file_is_chunks_of_whole_rows(tmp_path):
    rows = [b'%d,"text, and\nmore ""%d""",%s' % (n, n, b"x" * (n % 300)) for n in range(40_000)]
    path = written(tmp_path, b"\r\n".join([b"id,text,more", *rows]))

    index = Index.open([str(path)])

    assert index.num_records == 40_000
    sizes = index.tables.chunks["compressed_bytes"].tolist()
    assert max(sizes) <= csv_format.CHUNK_BYTES
    assert len(sizes) <= 2 * path.stat().st_size // csv_format.CHUNK_BYTES
    ids = np.random.default_rng(0).integers(0, 40_000, size=500)
    with Reader(index) as reader:
        assert reader.read(ids) == [rows[i] for i in ids]


def test_row_larger_than_a_read_is_one_record(tmp_path):
    row = b'"' + b"long\n" * (1 << 20) + b'",1'
    assert read(written(tmp_path, b"a,b\n" + row + b"\n2,3\n")) == [row, b"2,3"]


FIELD = st.text(alphabet='ab,"\n\r 1', max_size=6)
ROWS = st.lists(st.lists(FIELD, min_size=1, max_size=4), min_size=1, max_size=20)


def chunked_rows(data: bytes, *, read_bytes: int, chunk_bytes: int) -> list[bytes]:
    """The records of a file without header that is read and cut in small pieces."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_format, "_READ_BYTES", read_bytes)
        patch.setattr(csv_format, "CHUNK_BYTES", chunk_bytes)
        path = written(Path(folder), data)
        chunks = csv_format.read_chunks(str(path), has_header=False).chunks
        records = []
        for chunk, after in itertools.zip_longest(chunks, chunks[1:]):
            assert after is None or chunk.end_offset <= after.offset
            payload = data[chunk.offset : chunk.end_offset]
            decoded = csv_format.decode_chunk(payload, chunk=chunk, path="x.csv")
            assert len(decoded) == chunk.num_records
            records += decoded
        return records


@pytest.mark.long
@settings(max_examples=200)
@given(
    rows=ROWS,
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    read_bytes=st.integers(1, 60),
    chunk_bytes=st.integers(1, 60),
)
def test_what_the_csv_module_writes_is_read_row_by_row(
    rows, quoting, line_end, delimiter, read_bytes, chunk_bytes
):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, quoting=quoting, lineterminator=line_end, delimiter=delimiter)
    writer.writerows(rows)
    data = stream.getvalue().encode()

    records = chunked_rows(data, read_bytes=read_bytes, chunk_bytes=chunk_bytes)

    # Not `rows`: what the module writes, it does not always read as such (a CR alone, unquoted).
    expected = parsed(stream.getvalue(), delimiter)
    assert [parsed(record.decode(), delimiter) for record in records] == [[row] for row in expected]


def has_misplaced_quote(text: str) -> bool:
    """By a walk over the characters: a quote that no well-made file holds, or one left open."""
    is_open = False
    at = 0
    while at < len(text):
        before, after = text[at - 1 : at], text[at + 1 : at + 2]
        if text[at] == '"' and not is_open:
            is_open = True
            if before not in ("", ",", "\n", "\r"):
                return True
        elif text[at] == '"':
            if after == '"':
                at += 1
            elif after in ("", ",", "\n", "\r"):
                is_open = False
            else:
                return True
        at += 1
    return is_open


@pytest.mark.long
@settings(max_examples=500)
@given(
    text=st.text(alphabet='a,"\n\r', max_size=60),
    read_bytes=st.integers(1, 70),
    chunk_bytes=st.integers(1, 70),
)
def test_any_text_is_refused_or_cut_as_the_csv_module_does(text, read_bytes, chunk_bytes):
    if has_misplaced_quote(text):
        with pytest.raises(DataError, match="quote at"):
            chunked_rows(text.encode(), read_bytes=read_bytes, chunk_bytes=chunk_bytes)
        return
    records = chunked_rows(text.encode(), read_bytes=read_bytes, chunk_bytes=chunk_bytes)

    assert [parsed(record.decode()) for record in records] == [[row] for row in parsed(text)]


@settings(max_examples=300)
@given(data=st.binary(max_size=80), is_end=st.booleans())
def test_any_bytes_give_whole_rows(data, is_end):
    rows = find_rows(data, is_end=is_end)

    assert (np.diff([0, *rows.ends]) > 0).all()
    assert rows.num_bytes <= len(data)
    if is_end and rows.bad_quote is None:
        assert rows.num_bytes == len(data)


@settings(max_examples=200)
@given(text=st.text(alphabet='a,"\n', max_size=60))
def test_leaving_damage_out_ends_and_keeps_sound_lines(text):
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), f"first,row\n{text}\n".encode())
        chunks = csv_format.read_chunks(str(path), damaged="skip")

        assert chunks.header == b"first,row"
        if '"' not in text:
            lines = [line for line in text.split("\n") if line]
            assert sum(c.num_records for c in chunks.chunks) == len(lines)
            assert chunks.skipped_records == 0
