"""Tar shards as WebDataset names what is in them: the same records by number, or one error."""

import io
import tarfile

import pytest

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.webdataset import CHUNK_BYTES
from tests.columns import read_columns


def write(path, files, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(numbers, *, long=False, picture_bytes=0):
    for number in numbers:
        key = f"{'folder/' * 30 if long else ''}{number:06d}"
        yield f"{key}.cls", b"%d" % (number % 10)
        yield f"{key}.seg.png", (b"png %d" % number).ljust(picture_bytes)
        yield f"{key}.JSON", b'{"n": %d}' % number


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("long", [False, True])
def test_the_files_of_a_key_are_a_record(tmp_path, form, long):
    if long and form == tarfile.USTAR_FORMAT:
        pytest.skip("names of this form are short")
    files = samples(range(50), long=long, picture_bytes=CHUNK_BYTES // 10)
    path = write(tmp_path / "a.tar", files, format=form)
    columns = read_columns(path, [49, 0, 7])
    columns["seg.png"] = [picture.rstrip() for picture in columns["seg.png"]]
    prefix = b"folder/" * 30 if long else b""
    assert columns == {
        "__key__": [prefix + b"000049", prefix + b"000000", prefix + b"000007"],
        "cls": [b"9", b"0", b"7"],
        "json": [b'{"n": 49}', b'{"n": 0}', b'{"n": 7}'],
        "seg.png": [b"png 49", b"png 0", b"png 7"],
    }
    with Reader.open(str(path)) as reader:
        assert reader.index.num_chunks > 3
        assert len(reader) == 50


def test_shards_follow_their_names_and_columns_are_chosen(tmp_path):
    write(tmp_path / "train-000001.tar", samples(range(3, 5)))
    write(tmp_path / "train-000000.tar", samples(range(3)))
    assert read_columns(tmp_path, columns=["cls"]) == {"cls": [b"0", b"1", b"2", b"3", b"4"]}
    with pytest.raises(ConfigError, match=r"'jpg'.*__key__, cls, json, seg.png"):
        read_columns(tmp_path, columns=["jpg"])
    write(tmp_path / "train-000002.tar", [("x.txt", b"")])
    with pytest.raises(DataError, match=r"000002\.tar .*txt"):
        read_columns(tmp_path)


def test_folders_and_links_are_passed_over(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("d/a.txt", "d/b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(name[2:5].encode()))
    assert read_columns(path) == {"__key__": [b"d/a", b"d/b"], "txt": [b"a.t", b"b.t"]}


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_a_file_that_was_cut_off_is_one_sentence(tmp_path, fraction):
    path = write(tmp_path / "a.tar", [(f"{n}.bin", bytes(10_000)) for n in range(10)])
    path.write_bytes(path.read_bytes()[: int(10 * 10_752 * fraction) + 700])
    with pytest.raises(DataError, match=r"a\.tar .*read"):
        read_columns(path)


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        ([("a.x", b""), ("a.y", b""), ("b.x", b"")], "b has x"),
        ([("a", b"1")], "a: .*name"),
        ([("a.x", b"1"), ("a.x", b"2")], "a.x: .*twice"),
        ([], "no records"),
    ],
)
def test_invalid_records_are_an_error(tmp_path, files, detail):
    with pytest.raises(DataError, match=detail):
        read_columns(write(tmp_path / "a.tar", files))


def test_what_is_compressed_without_saying_so_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.x"))
    with pytest.raises(DataError, match=r"a\.tar .*compressed"):
        read_columns(tmp_path / "a.tar")
