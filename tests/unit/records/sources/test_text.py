"""Lines of text as records: those that Python sees, in chunks."""

import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.text_lines import CHUNK_BYTES, MAX_LINE_BYTES
from tests.unit.records.record_files import read


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"\n\none\n\n", [b"", b"", b"one", b""]),
        (b"\xef\xbb\xbfone\n", [b"one"]),
        ('"a,\n"b"é\n'.encode(), [b'"a,', '"b"é'.encode()]),
        (b"\r\n", [b""]),
    ],
)
def test_a_record_is_a_line(tmp_path, data, lines):
    (tmp_path / "a.txt").write_bytes(data)
    assert read(tmp_path / "a.txt") == lines


def test_many_lines_are_several_chunks(tmp_path):
    lines = [b"x" * 1000 * (n % 70) for n in range(200)] + [b"y" * 3 * CHUNK_BYTES]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines) + b"\n")
    assert read(tmp_path / "a.txt") == lines
    with Reader.open(str(tmp_path / "a.txt")) as reader:
        assert reader.index.num_chunks > 5


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16"))
    with pytest.raises(DataError, match="UTF-16"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"x" * (MAX_LINE_BYTES + CHUNK_BYTES))
    with pytest.raises(DataError, match=f"{MAX_LINE_BYTES} bytes"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.txt").touch()
    with pytest.raises(DataError, match="no records"):
        read(tmp_path / "b.txt")


def test_a_folder_does_not_stand_for_its_text_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x\n")
    with pytest.raises(DataError, match="file matches"):
        read(tmp_path)
