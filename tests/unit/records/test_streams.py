"""A user's stream is read once, in order, and its records are what it gave."""

import multiprocessing
import os
import signal
import sys

import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import ConfigError, DataError, OutputError, UserCodeError
from edl_horovod.records import streams
from edl_horovod.records.job_data import open_source
from edl_horovod.records.source import JobFolders
from tests.columns import plain
from tests.waiting import wait_until

CODE = """
import os, pathlib, time
import numpy as np

HERE = pathlib.Path(__file__).parent

def note():
    with open(HERE / "readings", "a") as stream:
        stream.write("read\\n")

def rows():
    note()
    for n in range(100):
        yield {"n": n, "x": np.array([n, n * n], np.float32), "t": f"é{n}", "w": np.arange(n % 3)}

def pairs():
    for n in range(5):
        yield {"a": n, "b": (b"%d" % n, [n] * n)}, np.float32(n)

def pictures():
    for n in range(4):
        yield np.full((n + 1, 2, 3), n, np.uint8), n

def slow():
    note()
    for n in range(40):
        time.sleep(0.02)
        yield n

def ends_early():
    yield from [1, 2]
    raise KeyError("no such disk")

generator = (n for n in range(3))
numbers = {3, 1, 2}
lines = iter([b"one", b"", b"three\\0"])
widening = iter([(1, []), (2.5, [7])])
nothing, empty, objects = iter([]), iter([()]), iter([object()])
mixed = iter([{"a": 1}, {"a": 1, "b": 2}])
exact = iter([2**62 + 1, np.array(5, "uint8"), np.array(-3, ">i8")])
large = iter([(2**53, 0.5), (0.5, np.float32(1)), (np.int64(2**60), np.uint64(2**63))])
signed = iter([2**62 + 1, 2**63 + 5])
rounded = iter([{"x": 1}, {"x": 2**53 + 1}, {"x": 0.5}])
rounding = iter([np.float32(1), np.uint64(2**53 + 1)])
texts = iter([1, "one"])
zeros = iter([[b"a\\0", b"\\0"], ["b", b"\\0\\0"]])
text_and_number = iter([{"x": ["a", 1]}])
axes = iter([np.zeros(2), np.zeros((2, 2))])

class DataLoader:
    def __iter__(self):
        return iter([[1, 2], [3, 4]])

class Endless:
    def __iter__(self):
        return iter([])
    def cardinality(self):
        return -1

class _BatchDataset:
    def __iter__(self):
        return iter([[1, 2]])
    def _inputs(self):
        return []

class _PrefetchDataset(_BatchDataset):
    def _inputs(self):
        return [_BatchDataset()]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    path = tmp_path / "zoo" / "my_stream.py"
    path.parent.mkdir()
    path.write_text(CODE)
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, "my_stream", raising=False)
    return path


@pytest.fixture
def folders(tmp_path):
    return JobFolders(*(tmp_path / "job" / name for name in ("index", "records", "unfinished")))


@pytest.fixture
def messages():
    return []


@pytest.fixture
def opened(module, folders, messages):
    """Opens a stream of the module as a job does."""

    def make(name, **settings):
        return open_source(
            f"dataset:my_stream.{name}",
            DataConfig(**settings),
            folders=folders,
            tell=messages.append,
        )

    return make


def records(source):
    return source.layout.pack([plain(column) for column in source.read(range(len(source)))])


def readings(module):
    path = module.with_name("readings")
    return len(path.read_text().split()) if path.exists() else 0


def test_what_a_generator_gives_is_read_in_its_order(opened, messages, folders):
    with opened("rows") as source:
        assert [plain(column) for column in source.read([5, 0])] == [
            [5, 0],
            [[5.0, 25.0], [0.0, 0.0]],
            ["é5".encode(), "é0".encode()],
            [[0, 1], []],
        ]
        assert source.block_counts.sum() == 100
        assert source.record_bytes() > 0
        assert [column.shape for column in source.layout.columns] == [(), (2,), (), (None,)]
    assert "dataset:my_stream.rows" in messages[0]
    assert "100 records of" in messages[1]
    assert "{n: int64, x: float32[2], t: text, w: int64[?]}" in messages[1]
    assert not folders.unfinished_records.exists()


def test_elements_arrive_with_the_tuples_and_dicts_they_had(opened):
    with opened("pairs") as source:
        assert not source.layout.needs_assembly
        elements = records(source)
        assert elements[0]["a"] == [0, 1, 2, 3, 4]
        assert elements[0]["b"] == ([b"0", b"1", b"2", b"3", b"4"], [[n] * n for n in range(5)])
        assert elements[1] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert source.layout.columns[3].dtype == "float32"


def test_arrays_of_differing_shapes_keep_their_shapes(opened):
    with opened("pictures") as source:
        assert source.layout.needs_assembly
        values, shapes, number = source.read([2, 0])
        assert [len(part) for part in plain(values)] == [18, 6]
        assert shapes.tolist() == [[3, 2, 3], [1, 2, 3]]
        assert number.tolist() == [2, 0]
        assert [len(part) for part in source.read([])] == [0, 0, 0]


def test_bytes_numbers_and_sets_are_streams_too(opened):
    with opened("lines") as source:
        assert source.layout is None
        assert source.read([2, 1, 0]) == [b"three\0", b"", b"one"]
    with opened("zeros") as source:
        assert records(source) == [[b"a\0", b"\0"], [b"b", b"\0\0"]]
    with opened("generator") as source:
        assert records(source) == [0, 1, 2]
    with opened("numbers") as source:
        assert sorted(records(source)) == [1, 2, 3]


def test_types_are_those_that_hold_for_all_elements(opened):
    with opened("widening") as source:
        assert [column.dtype for column in source.layout.columns] == ["float64", "int64"]
        assert records(source) == ([1.0, 2.5], [[], [7]])
    with opened("exact") as source:
        assert records(source) == [2**62 + 1, 5, -3]
    with opened("large") as source:
        assert [column.dtype for column in source.layout.columns] == ["float64", "float64"]
        assert records(source) == ([2**53, 0.5, 2**60], [0.5, 1.0, 2**63])


def test_a_later_job_reads_the_records_of_the_same_code(opened, module, messages):
    with opened("rows") as source:
        first = source.fingerprint
    messages.clear()
    with opened("rows") as source:
        assert source.fingerprint == first
    assert (readings(module), messages) == (1, [])


@pytest.mark.parametrize("is_imported", [False, True])
def test_other_code_is_read_again(opened, module, is_imported, monkeypatch):
    helper = module.with_name("my_helper.py")
    helper.write_text("LAST = 3\n")
    module.write_text(f"{CODE}\nfrom my_helper import LAST\n")
    with opened("rows") as source:
        assert len(source) == 100
    if is_imported:
        helper.write_text("LAST = 4\n")
    else:
        module.write_text(module.read_text().replace("range(100)", "range(70)"))
    monkeypatch.delitem(sys.modules, "my_stream")
    with opened("rows") as source:
        assert len(source) == (100 if is_imported else 70)
    assert readings(module) == 2
    monkeypatch.delitem(sys.modules, "my_helper", raising=False)


def _open(name, folders, answers):
    with open_source(f"dataset:my_stream.{name}", DataConfig(), folders=folders) as source:
        answers.put((len(source), source.fingerprint))


def test_one_process_reads_and_the_others_wait_for_it(module, folders):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=_open, args=("slow", folders, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    results = [answers.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(30)
    assert results == [results[0]] * 3
    assert results[0][0] == 40
    assert readings(module) == 1


def test_a_reader_that_is_killed_leaves_the_reading_to_the_next(module, folders):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_open, args=("slow", folders, context.Queue()))
    process.start()
    wait_until(lambda: readings(module) and any(folders.unfinished_records.glob("*/*")))
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert not any(path.is_dir() for path in folders.records.iterdir())
    answers = context.Queue()
    _open("slow", folders, answers)
    assert answers.get(timeout=10)[0] == 40
    assert readings(module) == 2


@pytest.mark.parametrize(
    ("name", "error", "detail"),
    [
        ("nothing", DataError, "dataset:my_stream.nothing"),
        ("empty", DataError, "Element 0 .*empty"),
        ("objects", DataError, "Element 0 .*object"),
        ("ends_early", UserCodeError, "2 elements: KeyError.*no such disk"),
        ("mixed", DataError, "Element 1 .*a dict of a, b.*a dict of a"),
        ("texts", DataError, "Element 1 .*text.*number"),
        ("signed", DataError, "Element 1 .* uint64, .* int64 "),
        ("rounded", DataError, "Element 2 .*'x' is float64, .* int64 "),
        ("rounding", DataError, "Element 1 .* uint64, .* float32 "),
        ("text_and_number", DataError, "Element 0 .*'x' is a list"),
        ("axes", DataError, "Element 1 .*2 axes.*1"),
        ("DataLoader", UserCodeError, "batch.*DataLoader"),
        ("_BatchDataset", UserCodeError, r"\.unbatch\(\)"),
        ("_PrefetchDataset", UserCodeError, r"\.unbatch\(\)"),
        ("Endless", UserCodeError, r"repeat\(\)"),
    ],
)
def test_a_stream_of_no_records_is_an_error_leaving_nothing(opened, folders, name, error, detail):
    with pytest.raises(error, match=detail):
        opened(name)
    assert not folders.unfinished_records.exists()
    assert not folders.records.exists() or not list(folders.records.iterdir())


def test_columns_of_a_stream_cannot_be_chosen(opened):
    with pytest.raises(ConfigError) as error:
        opened("rows", columns=["n"])
    assert error.value.received == {"data_plan.columns": "n"}


def test_without_a_job_there_is_no_place_for_the_records(module):
    with pytest.raises(DataError) as error:
        open_source("dataset:my_stream.rows", DataConfig())
    assert error.value.received == {"data": "dataset:my_stream.rows"}


def test_a_full_disk_is_told_and_leaves_nothing(opened, folders, monkeypatch):
    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(streams, "write_json", write)
    with pytest.raises(OutputError, match=r"rows.*No space"):
        opened("rows")
    assert not folders.unfinished_records.exists()
    assert not list(folders.records.iterdir())


def test_people_are_told_how_far_a_long_reading_is(opened, messages, monkeypatch):
    monkeypatch.setattr(streams, "TELL_SECONDS", 0.1)
    with opened("slow"):
        pass
    assert len([line for line in messages if " 0.0 MB " in line]) >= 3
