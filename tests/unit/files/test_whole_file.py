"""Small files appear whole or not at all."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from edl_horovod.errors import JobFailed
from edl_horovod.files.whole_file import read_json, reserve, write_bytes, write_json, write_text


def test_the_text_or_the_value_is_there_and_nothing_else(tmp_path):
    write_text(tmp_path / "hosts", "one")
    write_text(tmp_path / "hosts", "Zürich\n")
    assert (tmp_path / "hosts").read_text(encoding="utf-8") == "Zürich\n"
    value = {"generation": 3, "members": ["a", "b"]}
    write_json(tmp_path / "hosts", value)
    assert json.loads((tmp_path / "hosts").read_text()) == value
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


@pytest.mark.parametrize(
    ("name", "error"), [("folder", IsADirectoryError), ("no/file", FileNotFoundError)]
)
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, name, error):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("still here")
    with pytest.raises(error):
        write_text(tmp_path / name, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder" / "old").read_text() == "still here"


@pytest.mark.root
def test_a_full_disk_has_the_room_that_was_reserved(tmp_path):
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {tmp_path}") != 0:
        pytest.skip("no file system can be mounted here")
    try:
        reserve(tmp_path / "result.json", 16 << 10)
        with suppress(OSError), (tmp_path / "full").open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(512))
        with pytest.raises(OSError, match="No space"):
            write_text(tmp_path / "other.json", "x")
        write_json(tmp_path / "result.json", {"state": "finished"})
        assert json.loads((tmp_path / "result.json").read_text()) == {"state": "finished"}
        assert {path.name for path in tmp_path.iterdir()} == {"full", "result.json"}
    finally:
        os.system(f"umount {tmp_path}")


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def parts():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "file", parts(), mode=0o644)
    assert not list(tmp_path.iterdir())


def mode_of(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def umask():
    """Sets the mask of this process until the test ends."""
    former = os.umask(0)
    yield os.umask
    os.umask(former)


@pytest.mark.usefixtures("umask")
def test_a_private_file_is_private_from_the_beginning(tmp_path, monkeypatch):
    first_modes, change = [], os.fchmod

    def fchmod(descriptor, mode):
        first_modes.extend(mode_of(path) for path in tmp_path.iterdir())
        change(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    write_text(tmp_path / "token", "secret", is_private=True)
    assert {mode_of(tmp_path / "token"), *first_modes} == {0o600}


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o600), (0o644, 0o644)])
def test_a_mode_holds_in_spite_of_the_umask(tmp_path, umask, mode, expected):
    umask(0o077)
    write_bytes(tmp_path / "file", [b"x"], mode=mode)
    assert mode_of(tmp_path / "file") == expected


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


def test_a_name_is_never_on_the_disk_before_its_content(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor):
        done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def note_name(path, target):
        done.append(("name", target.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_name)
    write_json(tmp_path / "result.json", {})
    (first, partial), *then = done
    assert first == "sync"
    assert partial.startswith(".result.json.")
    assert then == [("name", "result.json"), ("sync", tmp_path.name)]


def test_a_file_that_is_not_there_is_no_damage(tmp_path):
    assert read_json(tmp_path / "result.json", dict, hint="") is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\0\0\0", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"state": "fin', "JSON"),
        (b"[]", "JSON object"),
        (b"{}", "it has no state"),
    ],
)
def test_a_damaged_file_is_named_with_the_problem_and_advice(tmp_path, content, problem):
    def parse(value):
        raise ValueError(f"it has {len(value) or 'no'} state")

    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(JobFailed) as caught:
        read_json(tmp_path / "result.json", parse, hint="Remove it.")
    message = str(caught.value)
    assert problem in message
    assert str(tmp_path / "result.json") in message
    assert message.endswith("Remove it.")
