"""The files that a pattern stands for."""

import os

import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.sources.formats import format_of
from edl_horovod.records.sources.patterns import expand


@pytest.fixture
def tree(tmp_path):
    for name in ("b.recordio", "a.recordio", "sub/c.recordio", "sub/deep/d.recordio", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".a.recordio.77.partial").write_bytes(b"half")
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd,[name].recordio").write_bytes(b"")
    return tmp_path


PATTERNS = {
    "plain path": ("{0}/a.recordio", ["a.recordio"]),
    "glob is sorted": ("{0}/?.recordio", ["a.recordio", "b.recordio"]),
    "folder": ("{0}", ["a.recordio", "b.recordio", "odd,[name].recordio"]),
    "list, each once": ("{0}/b.recordio, {0}/[ab].recordio", ["a.recordio", "b.recordio"]),
    "one file spelt twice": ("{0}/a.recordio,{0}/sub/../a.recordio", ["a.recordio"]),
    "across folders": ("{0}/sub/**/*.recordio", ["sub/c.recordio", "sub/deep/d.recordio"]),
    "glob of folders": ("{0}/s*", ["sub/c.recordio"]),
    "name like a pattern": ("{0}/odd,[name].recordio", ["odd,[name].recordio"]),
    "file scheme": ("file://{0}/sub", ["sub/c.recordio"]),
}


@pytest.mark.parametrize(("pattern", "names"), PATTERNS.values(), ids=PATTERNS)
def test_expand(tree, pattern, names):
    assert [os.path.relpath(path, tree) for path in expand(pattern.format(tree))] == names


NO_MATCHES = {
    "no such file": ("{0}/c.recordio", r"holds 7 entries: .*a\.recordio"),
    "no such folder": ("{0}/sbu/*.recordio", "nearest .*'sub'"),
    "glob": ("{0}/train-*.recordio", r"matches '.*/train-\*\.recordio'"),
    "one of a list": ("{0}/a.recordio,{0}/missing", "matches '.*/missing'"),
    "folder without files": ("{0}/empty", r"'.*/empty', is empty.*\.recordio, \.csv, "),
    "nothing": (" , ", "pattern=' , '"),
    "unknown scheme": ("gss://bucket/x", "file://, s3://.*'gs'"),
}


@pytest.mark.parametrize(("pattern", "message"), NO_MATCHES.values(), ids=NO_MATCHES)
def test_expand_without_a_match_says_what_is_there(tree, pattern, message):
    with pytest.raises(DataError, match=message):
        expand(pattern.format(tree))


@pytest.mark.parametrize("name", ["2.csv.gz", "2.jsonl.bz2", "2.TFRECORD-00000-of-00008.ZST"])
def test_a_folder_with_compressed_data_is_refused_as_a_glob_of_it_is(tmp_path, name):
    (tmp_path / "1.csv").touch()
    (tmp_path / name).touch()
    (tmp_path / "notes.txt.gz").touch()
    for pattern in (f"{tmp_path}", f"{tmp_path}/[12].*"):
        paths = expand(pattern)
        assert [os.path.basename(path) for path in paths] == ["1.csv", name]
        with pytest.raises(DataError, match=rf"{name} .*compressed"):
            format_of(paths)


def test_expand_of_a_relative_pattern_names_the_present_folder(tree, monkeypatch):
    monkeypatch.chdir(tree)

    assert expand("a.recordio") == ["a.recordio"]
    with pytest.raises(DataError, match=r"folder, '\.'"):
        expand("missing/x")
