"""JSON lines as Python's json module writes them: columns whose types hold for all lines."""

import json

import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources import text_lines
from tests.columns import read_columns


def write(path, rows, end="\n"):
    path.write_text("".join(json.dumps(row) + end for row in rows), newline="")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_an_object_in_a_line_is_a_record(tmp_path, end):
    rows = [
        {"x": n / 2, "n": n, "t": f"é {n}", "w": ["a"] * n, "in": {"y": [1, 2]}} for n in range(5)
    ]
    found = read_columns(write(tmp_path / "a.jsonl", rows, end), [4, 0])
    assert found == {
        "x": [2.0, 0.0],
        "n": [4, 0],
        "t": ["é 4".encode(), "é 0".encode()],
        "w": [[b"a"] * 4, []],
        "in.y": [[1, 2], [1, 2]],
    }


def test_the_type_of_a_column_holds_for_all_lines_of_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "CHUNK_BYTES", 40)
    write(tmp_path / "a.jsonl", [{"x": n, "d": "2026-01-02"} for n in range(20)])
    write(tmp_path / "b.jsonl", [{"x": 0.5, "d": "later"}])
    found = read_columns(tmp_path)
    assert found["x"] == [*map(float, range(20)), 0.5]
    assert found["d"] == [b"2026-01-02"] * 20 + [b"later"]
    with Reader.open(str(tmp_path)) as reader:
        assert reader.index.num_chunks > 10


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"x": 1}\n{"x": \n', "cannot be read as JSON lines"),
        ('{"x": 1}\n{"x": "one"}\n', "cannot be read as JSON lines"),
        ("[1, 2]\n", "cannot be read as JSON lines"),
        ('{"x": 1}\n{"y": 1}\n', r"empty values \(null\) in the column 'x'"),
        ("\n\n", "There are no records"),
        ("", "There are no records"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, text, what):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=what):
        read_columns(tmp_path / "a.jsonl")
