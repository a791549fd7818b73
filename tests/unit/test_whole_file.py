"""Small files appear whole or not at all."""

import json
import threading

import pytest

from edl_horovod.whole_file import write_json, write_text


def test_the_text_is_there_and_nothing_else(tmp_path):
    write_text(tmp_path / "hosts", "one")
    write_text(tmp_path / "hosts", "Zürich\n")
    assert (tmp_path / "hosts").read_text(encoding="utf-8") == "Zürich\n"
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


def test_a_value_comes_back(tmp_path):
    value = {"generation": 3, "members": ["a", "b"]}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == value


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").write_text("still here")
    with pytest.raises(OSError, match="directory"):
        write_text(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (target / "old").read_text() == "still here"


def test_a_missing_directory_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "no" / "file", "x")


def test_a_reader_never_sees_a_part(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, ["x" * 100_000] * 1)
    seen = []
    done = threading.Event()

    def read():
        while not done.is_set():
            seen.append(len(json.loads(path.read_text())[0]))

    reader = threading.Thread(target=read)
    reader.start()
    for length in range(100_000, 100_100):
        write_json(path, ["x" * length])
    done.set()
    reader.join()
    assert set(seen) <= set(range(100_000, 100_100))
