"""Arrays that NumPy saved: record i is row i of each, or one clear error."""

import zipfile

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.job_data import open_source
from edl_horovod.records.source import JobFolders
from tests.columns import read_columns
from tests.unit.records.record_files import flip_a_bit

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(1000, 3, 4)).astype(np.float32)
Y = RANDOM.integers(0, 10, size=1000)


def save_all(folder, **arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def save_npz(path, *, packed=False, **arrays):
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "packed npz"])
def test_a_record_is_a_row_of_each_array(tmp_path, kind):
    if kind == "npy":
        data = save_all(tmp_path / "d", x=X, y=Y)
    else:
        data = save_npz(tmp_path / "a.npz", packed=kind != "npz", x=X, y=Y)
    ids = [999, 0, 500, 500]
    assert read_columns(data, ids) == {"x": X[ids].tolist(), "y": Y[ids].tolist()}
    assert read_columns(data) == {"x": X.tolist(), "y": Y.tolist()}


@pytest.mark.parametrize("packed", [False, True])
def test_several_files_follow_one_another(tmp_path, packed):
    for number, part in enumerate(np.split(np.arange(10_000), [1, 7000])):
        save_npz(tmp_path / f"{number}.npz", packed=packed, x=part)
    assert read_columns(tmp_path)["x"] == list(range(10_000))
    with open_source(str(tmp_path), DataConfig()) as source:
        assert source.block_counts.tolist() == [1, 4096, 6999 - 4096, 3000]
        assert source.block_starts.tolist() == [0, 1, 4097, 7000]


@pytest.mark.parametrize("packed", [False, True])
def test_the_order_of_the_arrays_may_differ_from_file_to_file(tmp_path, packed):
    save_npz(tmp_path / "a.npz", packed=packed, x=np.arange(3), y=np.arange(3) * 10)
    save_npz(tmp_path / "b.npz", packed=packed, y=np.arange(3, 5) * 10, x=np.arange(3, 5))
    assert read_columns(tmp_path) == {"x": [0, 1, 2, 3, 4], "y": [0, 10, 20, 30, 40]}


def test_folders_of_arrays_follow_one_another(tmp_path):
    for name, rows in (("a", np.arange(3)), ("b", np.arange(3, 5))):
        save_all(tmp_path / name, x=rows, y=rows * 2)
    columns = read_columns(f"{tmp_path}/a,{tmp_path}/b")
    assert columns == {"x": [0, 1, 2, 3, 4], "y": [0, 2, 4, 6, 8]}


def test_arrays_of_other_lengths_need_the_names_of_those_that_belong_together(tmp_path):
    path = save_npz(tmp_path / "mnist.npz", x_train=X, y_train=Y, x_test=X[:9], y_test=Y[:9])
    with pytest.raises(DataError, match=r"x_test .* 9 .*\[x_train"):
        read_columns(path)
    columns = read_columns(path, columns=["y_test", "x_test"])
    assert list(columns) == ["y_test", "x_test"]
    assert columns["y_test"] == Y[:9].tolist()
    with pytest.raises(ConfigError, match=r"'ytest'.*y_test"):
        read_columns(path, columns=["ytest"])


def test_types_that_are_no_numbers_of_this_machine(tmp_path):
    times = np.array(["2026-01-02", "2026-01-03"], "datetime64[D]")
    data = save_all(
        tmp_path / "d",
        big=np.array([1.5, -2], ">f8"),
        flag=np.array([True, False]),
        raw=np.array([b"ab", b"c"]),
        text=np.array(["é", "abc"]),
        time=times,
    )
    assert read_columns(data) == {
        "big": [1.5, -2.0],
        "flag": [True, False],
        "raw": [b"ab", b"c"],
        "text": ["é".encode(), b"abc"],
        "time": times.view(np.int64).tolist(),
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["datetime64[D]", ">m8[s]"])
def test_an_empty_date_is_an_error_with_its_array(tmp_path, packed, kind):
    when = np.array([1, "NaT", 3], "datetime64[D]" if kind[0] == "d" else "m8[s]").astype(kind)
    path = save_npz(tmp_path / "a.npz", packed=packed, when=when, n=np.arange(3))
    with pytest.raises(DataError, match=r" 1 .*'when' .*a\.npz"):
        read_columns(path)
    assert read_columns(path, columns=["n"]) == {"n": [0, 1, 2]}


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array([{"a": 1}], object), "Python objects"),
        (np.array([(1, 2.0)], "i4,f4"), "named fields"),
        (np.asfortranarray(X[:, 0]), "ascontiguousarray"),
        (np.float32(1), "no dimension"),
        (X[:0], "no records"),
        (np.array([["a"]]), "'a'.*several dimensions"),
    ],
)
def test_an_array_that_cannot_be_records_is_one_sentence(tmp_path, array, problem):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=problem):
        read_columns(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_damaged_files_are_one_sentence(tmp_path, name):
    path = tmp_path / name
    np.save(path, X) if name == "a.npy" else np.savez(path, x=X)
    whole = path.read_bytes()
    for content in (whole[:-1000], whole[:5], b"", b"PAR1 or another file", whole[:100]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name} .*read"):
            read_columns(path)


def middle_of_data(path, member):
    """A byte in the midst of what an array of an archive holds."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    return info.header_offset + 128 + info.file_size // 2


@pytest.mark.parametrize("num_records", [1000, 200_000], ids=["small", "large"])
def test_a_flipped_bit_in_an_uncompressed_archive_is_refused_as_numpy_does(tmp_path, num_records):
    path = save_npz(tmp_path / "a.npz", x=np.arange(num_records), y=np.ones((num_records, 4)))
    flip_a_bit(path, middle_of_data(path, "x.npy"))
    with pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"), np.load(path) as archive:
        archive["x"]
    with pytest.raises(DataError, match=r"a\.npz .*'x\.npy'"):
        read_columns(path)
    assert read_columns(path, [7], columns=["y"]) == {"y": [[1.0] * 4]}  # What is read is sound.


def test_a_bit_that_flips_after_the_index_was_made_is_refused_where_it_is_read(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    path = save_npz(data / "a.npz", x=np.arange(200_000), y=np.ones((200_000, 4)))
    folders = JobFolders(*(tmp_path / "job" / name for name in ("index", "records", "partial")))
    with open_source(str(path), DataConfig(), folders=folders) as source:
        assert len(list(data.glob(".edl_horovod.*.index"))) == 1
        first = source.read(range(10))[0].tolist()
    flip_a_bit(path, middle_of_data(path, "y.npy"))
    with open_source(str(path), DataConfig(), folders=folders) as source:
        assert source.read(range(10))[0].tolist() == first == [*range(10)]
        with pytest.raises(DataError, match=r"'y' of .*a\.npz"):
            source.read([100_000])


@pytest.mark.parametrize("shape", [(3, 0), (3, 2, 0)])
def test_records_without_a_value_are_records(tmp_path, shape):
    path = save_npz(tmp_path / "a.npz", x=np.zeros(shape), y=np.arange(3))
    assert read_columns(path) == {"x": np.zeros(shape).tolist(), "y": [0, 1, 2]}
    path = save_npz(tmp_path / "b.npz", x=np.zeros(shape))
    assert read_columns(path) == {"x": np.zeros(shape).tolist()}


def test_a_compressed_file_says_that_it_is_read_as_a_whole(tmp_path):
    said = []
    path = save_npz(tmp_path / "a.npz", packed=True, x=X)
    with open_source(str(path), DataConfig(), tell=said.append):
        pass
    assert said[0].startswith(f"{path} is compressed")


def test_the_fingerprint_is_of_the_contents_and_not_of_the_place(tmp_path):
    def fingerprint(folder, **arrays):
        with open_source(str(save_all(tmp_path / folder, **arrays)), DataConfig()) as source:
            return source.fingerprint

    first = fingerprint("a", x=X, y=Y)
    assert fingerprint("b", x=X, y=Y) == first
    assert fingerprint("b", x=X + 1, y=Y) != first
    assert fingerprint("c", x=X, z=Y) != first


def test_arrays_of_parts_must_be_alike(tmp_path):
    save_npz(tmp_path / "a.npz", x=X)
    save_npz(tmp_path / "b.npz", x=X[:, :2])
    with pytest.raises(DataError, match="shape"):
        read_columns(tmp_path)
    save_npz(tmp_path / "b.npz", z=X)
    with pytest.raises(DataError, match="different arrays"):
        read_columns(tmp_path)


def test_dates_and_durations_say_their_units(tmp_path):
    path = save_npz(
        tmp_path / "a.npz",
        d=np.array(["2026-01-02"], "datetime64[D]"),
        s=np.array([5], "timedelta64[s]"),
        quarter=np.array([5], "datetime64[15m]"),
    )
    with open_source(str(path), DataConfig()) as source:
        units = {column.name: column.time_type for column in source.layout.columns}
    assert units == {"d": "datetime64[D]", "s": "timedelta64[s]", "quarter": ""}
