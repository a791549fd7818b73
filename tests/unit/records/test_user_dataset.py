"""A user's own records by number: what they may be, or one clear error."""

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import ConfigError, DataError, UserCodeError
from edl_horovod.records.job_data import open_source
from edl_horovod.records.sources.table import check_sources
from tests.columns import plain, read_columns

CODE = """
import numpy as np

class Squares:
    def __init__(self, count=100):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, n):
        return {"n": n, "x": np.array([n, n * n], np.float32), "t": f"é{n}", "w": np.arange(n % 3)}

squares = Squares(7)
def make():
    return Squares(10)
pairs = [(np.float32(n), b"%d" % n) for n in range(5)]
lines = [b"one", b"", b"three"]
numbers = np.arange(12).reshape(4, 3)
texts = [{"x": [np.float32(1).tobytes(), np.float32(0).tobytes()]}]
mixed = [{"x": ["a", 1]}]
numbers_and_text = [{"x": 1}, {"x": "one"}]
signed = [2**62 + 1, 2**63 + 5, 2**62 + 3]
class Late:
    def __init__(self, *values):
        self.usual, self.late = values
    def __len__(self):
        return 100
    def __getitem__(self, n):
        return {"x": self.late if n == 50 else self.usual}
wide = Late(np.int8(5), 300)
picture = Late(np.zeros((2, 3), np.uint8), np.full((2, 3), 300, np.uint16))
faint = Late(np.zeros((2, 3), np.uint8), np.full((2, 3), 44, np.uint16))
unsigned = Late(2**62 + 1, 2**63 + 5)
single = Late(np.float32(1), 16777217)
even = Late(np.float32(1), 16777218)
double = Late(0.5, 2**53 + 1)
huge = Late(np.float16(1), 70000)
precise = Late(np.float32(1), 0.1)
text_late = Late("a", 5)
number_late = Late(5, "a")
class Bytes(Late):
    def __getitem__(self, n):
        return super().__getitem__(n)["x"]
bytes_late = Bytes(b"a", 5)
pictures = [np.full((2, 2), n, kind) for n, kind in [(1, "uint8"), (300, "uint16"), (2, "uint8")]]
small = [np.int8(5), 300]
mixed_floats = [np.float32(0.5), 16777217]
lists = [[], [2**62 + 1]]
large = [0.5, 2**53 + 1]
nothing = []
odd = [np.zeros(2), np.zeros(3), np.zeros((2, 2))]
objects = [object()]
number = 3
def broken():
    raise KeyError("no such disk")
class Fails(Squares):
    def __getitem__(self, n):
        if n == 3:
            raise OSError("the disk is gone")
        return super().__getitem__(n)
late = Fails()
class Damaged(Squares):
    def __getitem__(self, n):
        from edl_horovod.errors import DataError
        raise DataError("It is damaged.", received={"path": "/d"}, hint="Copy it again.")
damaged = Damaged()
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "my_data.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_data", raising=False)


def opened(name):
    return open_source(f"dataset:my_data.{name}", DataConfig())


@pytest.mark.parametrize(("name", "count"), [("squares", 7), ("make", 10), ("Squares", 100)])
def test_an_object_a_function_or_a_class_gives_the_records(name, count):
    columns = read_columns(f"dataset:my_data.{name}", [5, 0])
    assert columns == {
        "n": [5, 0],
        "x": [[5.0, 25.0], [0.0, 0.0]],
        "t": ["é5".encode(), "é0".encode()],
        "w": [[0, 1], []],
    }
    with opened(name) as source:
        assert source.block_counts.sum() == count
    assert list(read_columns(f"dataset:my_data.{name}", [0], columns=["x", "n"])) == ["x", "n"]


def test_tuples_arrays_and_bytes_are_records_as_they_are():
    with opened("pairs") as source:
        assert source.layout.kind == "tuple"
        assert [plain(values) for values in source.read([4, 1])] == [[4.0, 1.0], [b"4", b"1"]]
    with opened("numbers") as source:
        assert source.layout.pack(source.read([3])).tolist() == [[9, 10, 11]]
    with opened("lines") as source:
        assert source.layout is None
        assert source.read([2, 1, 0]) == [b"three", b"", b"one"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pictures", [[[1, 1], [1, 1]], [[300, 300], [300, 300]], [[2, 2], [2, 2]]]),
        ("small", [5, 300]),
        ("mixed_floats", [0.5, 16777217]),
        ("lists", [[], [2**62 + 1]]),
    ],
)
def test_the_type_of_a_part_holds_for_all_samples(name, values):
    assert read_columns(f"dataset:my_data.{name}")[""] == values


@pytest.mark.parametrize(
    ("name", "usual", "late"),
    [
        ("faint", [[0, 0, 0]] * 2, [[44, 44, 44]] * 2),
        ("even", 1.0, 16777218),
        ("precise", 1.0, float(np.float32(0.1))),
    ],
)
def test_other_types_are_taken_where_the_usual_type_holds_their_values(name, usual, late):
    assert read_columns(f"dataset:my_data.{name}", [50, 51])["x"] == [late, usual]


def test_texts_in_a_list_keep_their_last_zero_bytes():
    texts = [np.float32(1).tobytes(), np.float32(0).tobytes()]
    assert read_columns("dataset:my_data.texts") == {"x": [texts]}


def test_the_fingerprint_follows_the_records():
    def fingerprint(name):
        with opened(name) as source:
            return source.fingerprint

    assert fingerprint("make") == fingerprint("make") != fingerprint("squares")


@pytest.mark.parametrize(
    ("name", "error", "detail"),
    [
        ("nothing", DataError, "no records"),
        ("odd", DataError, "cannot become tensors"),
        ("objects", DataError, "object"),
        ("numbers_and_text", DataError, "'x' .*int64 and text"),
        ("signed", DataError, "int64 and uint64"),
        ("large", DataError, "record 1 .*9007199254740993 .*float64"),
        ("wide", DataError, "record 50 .* 300 .*int8"),
        ("picture", DataError, "record 50 .*300 to 300 .*uint8"),
        ("unsigned", DataError, f"record 50 .*{2**63 + 5} .*int64"),
        ("single", DataError, "record 50 .*16777217 .*float32"),
        ("double", DataError, f"record 50 .*{2**53 + 1} .*float64"),
        ("huge", DataError, "record 50 .*70000 .*float16"),
        ("text_late", DataError, r"record 50 .*int64\[\] .*bytes\[\]"),
        ("number_late", DataError, r"record 50 .*object\[\] .*int64\[\]"),
        ("bytes_late", DataError, r"50 .*int64\[\].*bytes\[\]"),
        ("mixed", DataError, "'x' .* a list"),
        ("number", UserCodeError, "int has no __len__"),
        ("broken", UserCodeError, "KeyError.*no such disk"),
        ("unknown", UserCodeError, "'unknown'"),
        ("late", UserCodeError, "record 3.*OSError: the disk is gone"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_an_error(name, error, detail):
    with pytest.raises(error, match=detail) as caught:
        read_columns(f"dataset:my_data.{name}")
    assert "lie beside" not in str(caught.value)


def test_an_error_of_ours_within_ones_own_data_stays_as_it_is():
    with pytest.raises(DataError) as caught:
        read_columns("dataset:my_data.damaged")
    assert str(caught.value) == "It is damaged. Received: path='/d'. Copy it again."


def test_only_a_module_that_is_not_there_must_be_put_there(tmp_path):
    (tmp_path / "imports_other.py").write_text("import no_such_package\n")
    with pytest.raises(UserCodeError, match="no_such_package") as caught:
        read_columns("dataset:imports_other.rows")
    assert "lie beside" not in str(caught.value)
    with pytest.raises(UserCodeError, match="lie beside"):
        read_columns("dataset:no_such_module.rows")


@pytest.mark.parametrize("data", ["dataset:", "dataset:train", "dataset:a b.c", "dataset:a/b.c"])
def test_a_name_that_none_can_be_is_refused_before_the_job_starts(data):
    with pytest.raises(DataError) as caught:
        check_sources([data], DataConfig())
    assert caught.value.received == {"data": data}


def test_columns_of_records_that_are_not_dicts_are_refused():
    with pytest.raises(ConfigError) as caught:
        read_columns("dataset:my_data.pairs", columns=["0"])
    assert list(caught.value.received) == ["data_plan.columns"]
    assert np.array(read_columns("dataset:my_data.numbers")[""]).shape == (4, 3)
