"""Parquet files that PyArrow wrote: row groups as chunks, columns by name, or one clear error."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.errors import ConfigError, DataError, MissingDependency
from edl_horovod.records.index_tables import WHOLE_BYTES
from edl_horovod.records.reader import Reader
from tests.columns import read_columns


def write(path, table, **options):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), path, **options)
    return path


def numbers(count):
    return {"x": np.arange(count, dtype=np.float32), "n": [f"row {row}" for row in range(count)]}


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_records_are_read_by_number_in_any_order(tmp_path, compression):
    path = write(tmp_path / "a.parquet", numbers(100), row_group_size=7, compression=compression)
    ids = [99, 0, 50, 50, 6, 7]
    assert read_columns(path, ids) == {
        "x": list(map(float, ids)),
        "n": [b"row %d" % row for row in ids],
    }
    assert read_columns(path, []) == {"x": [], "n": []}
    with Reader.open(str(path)) as reader:
        assert reader.block_counts.tolist() == [7] * 14 + [2]
        assert reader.record_bytes() > 4


def test_each_type_becomes_what_tensors_can_hold(tmp_path):
    day = datetime.date(2026, 1, 2)
    time = datetime.datetime(2026, 1, 2, 3, 4, 5)
    table = {
        "bool": pa.array([True, False]),
        "int8": pa.array([-1, 2], pa.int8()),
        "uint64": pa.array([1, 2**63], pa.uint64()),
        "half": pa.array([0.5, 2.0], pa.float16()),
        "text": pa.array(["é", ""]),
        "binary": pa.array([b"\x00", b"12"], pa.binary()),
        "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
        "kind": pa.array(["cat", "dog"]).dictionary_encode(),
        "day": pa.array([day, day]),
        "time": pa.array([time, time], pa.timestamp("ms")),
        "price": pa.array([decimal.Decimal("1.25"), decimal.Decimal("-3.50")]),
        "list": pa.array([[1, 2, 3], []], pa.list_(pa.int64())),
        "words": pa.array([["a"], ["b", "cc"]]),
        "pair": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "place": pa.array([{"city": "A", "at": {"x": 1}}, {"city": "B", "at": {"x": 2}}]),
        "hole": pa.array([1.5, None]),
    }
    columns = read_columns(write(tmp_path / "a.parquet", table))
    hole = columns.pop("hole")
    assert hole[0] == 1.5
    assert np.isnan(hole[1])
    assert columns == {
        "bool": [True, False],
        "int8": [-1, 2],
        "uint64": [1, 2**63],
        "half": [0.5, 2.0],
        "text": ["é".encode(), b""],
        "binary": [b"\x00", b"12"],
        "fixed": [b"ab", b"cd"],
        "kind": [b"cat", b"dog"],
        "day": [(day - datetime.date(1970, 1, 1)).days] * 2,
        "time": [int(time.replace(tzinfo=datetime.UTC).timestamp() * 1000)] * 2,
        "price": [1.25, -3.5],
        "list": [[1, 2, 3], []],
        "words": [[b"a"], [b"b", b"cc"]],
        "pair": [[1.0, 2.0], [3.0, 4.0]],
        "place.city": [b"A", b"B"],
        "place.at.x": [1, 2],
    }


def test_only_the_named_columns_are_read_in_that_order(tmp_path):
    table = {**numbers(5), "bad": pa.array([None] * 5), "in": pa.array([{"y": 1, "z": None}] * 5)}
    path = write(tmp_path / "a.parquet", table)
    assert read_columns(path, [4], columns=["n", "x"]) == {"n": [b"row 4"], "x": [4.0]}
    assert read_columns(path, [4], columns=["in.y"]) == {"in.y": [1]}
    with pytest.raises(ConfigError, match=r"'X'.* x, n, bad.*'x'"):
        read_columns(path, columns=["X"])


def test_several_files_are_one_and_of_one_schema(tmp_path):
    write(tmp_path / "d" / "b.parquet", {"x": [3, 4]})
    write(tmp_path / "d" / "a.parquet", {"x": [1, 2]})
    write(tmp_path / "d" / "c.parquet", {"x": pa.array([], pa.int64())})
    assert read_columns(tmp_path / "d") == {"x": [1, 2, 3, 4]}
    write(tmp_path / "d" / "e.parquet", {"x": [0.5]})
    with pytest.raises(DataError, match=r"e\.parquet .*double.*'x'"):
        read_columns(tmp_path / "d")


def test_a_large_row_group_is_one_block_and_a_small_one_several(tmp_path):
    data = {"x": np.random.default_rng(1).normal(size=WHOLE_BYTES // 8 + 10_000)}
    with Reader.open(str(write(tmp_path / "a.parquet", data))) as reader:
        assert reader.block_counts.tolist() == [len(data["x"])]
    data = {"x": np.arange(10_000)}
    with Reader.open(str(write(tmp_path / "b.parquet", data))) as reader:
        assert reader.block_counts.tolist() == [4096, 4096, 10_000 - 2 * 4096]


def test_an_empty_value_that_nothing_stands_for_is_an_error_with_its_column(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": pa.array([1, None]), "x": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"1 empty .*'id' .* 1"):
        read_columns(path)
    assert read_columns(path, columns=["x"]) == {"x": [1.0, 2.0]}


def test_a_type_that_no_tensor_has_is_an_error_with_its_column(tmp_path):
    path = write(tmp_path / "a.parquet", {"deep": pa.array([[[1], [2, 3]]]), "x": [1]})
    with pytest.raises(DataError, match=r"'deep' .*tensors"):
        read_columns(path)


@pytest.mark.parametrize(
    ("arrays", "names", "shared"),
    [
        ([pa.array([1]), pa.array([2])], ["x", "x"], "x"),
        ([pa.array([1]), pa.array([{"b": 2}])], ["a.b", "a"], "a.b"),
        ([pa.array([{"b": 2}]), pa.array([1])], ["a", "a.b"], "a.b"),
        ([pa.array([{"b": {"c": 2}}]), pa.array([{"c": 1}])], ["a", "a.b"], "a.b.c"),
    ],
)
def test_columns_that_share_a_name_are_refused(tmp_path, arrays, names, shared):
    table = pa.table([*arrays, pa.array([3])], names=[*names, "y"])
    path = write(tmp_path / "a.parquet", table)
    with pytest.raises(DataError, match=rf"'{shared}' .*a\.parquet .*2 columns"):
        read_columns(path)
    assert read_columns(path, columns=["y"]) == {"y": [3]}


def test_columns_that_share_a_name_in_a_later_file_are_refused(tmp_path):
    write(tmp_path / "d" / "a.parquet", pa.table({"x": [1]}))
    write(tmp_path / "d" / "b.parquet", pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]))
    with pytest.raises(DataError, match=r"b\.parquet .*'x' 2 times"):
        read_columns(tmp_path / "d")


def test_damaged_files_are_one_sentence(tmp_path):
    options = {"row_group_size": 100, "write_page_checksum": True}
    path = write(tmp_path / "a.parquet", numbers(1000), **options)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[60] ^= 255
    for content, said in (
        (whole[:-50], "damaged"),
        (b"id,x\n1,2\n" * 5, "69 64"),
        (b"", "nothing"),
        (changed, "damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"a\.parquet .*{said}"):
            read_columns(path)
    assert read_columns(path, damaged="skip")["x"] == list(map(float, range(100, 1000)))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", numbers(3))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"Parquet .*arrow"):
        read_columns(path)
