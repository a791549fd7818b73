"""What a spec is to know of all records is found out once, and the same for every process."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.records.columns import Ragged
from edl_horovod.records.layout import Column, Layout
from edl_horovod.spec import ElasticDLSpec
from edl_horovod.tasks import opening


class Source:
    layout = None

    def __init__(self, count, fingerprint="f"):
        self.block_starts, self.block_counts = np.array([0, 3]), np.array([3, count - 3])
        self.fingerprint = fingerprint

    def read(self, ids):
        return [str(number).encode() for number in ids]


def adapted(function, source, folder, tell=print, examples=None):
    """What a spec with this `adapt` gets to know."""
    methods = dict.fromkeys(ElasticDLSpec.__abstractmethods__, lambda self: None)
    kind = type("Spec", (ElasticDLSpec,), {**methods, "adapt": function})
    loaded = SimpleNamespace(spec=kind(), label="Spec of m.py", zoo=Path("/zoo"))
    opening.adapt(loaded, source, folder, tell, examples=lambda: contextlib.nullcontext(examples))
    return loaded.spec.adapted


def test_all_records_are_looked_at_once_for_all_processes(tmp_path):
    calls, messages = [], []

    def look(self, records, tell):
        calls.append(list(records))
        tell("seen")
        return {"number": len(calls[-1])}

    for _ in range(3):
        assert adapted(look, Source(5), tmp_path / "adapted", messages.append) == {"number": 5}
    assert calls == [[b"0", b"1", b"2", b"3", b"4"]]
    assert messages == ["seen"]


def test_other_records_are_looked_at_anew(tmp_path):
    def look(self, records):
        return sum(1 for _ in records)

    for count, fingerprint in ((5, "f"), (7, "g")):
        assert adapted(look, Source(count, fingerprint), tmp_path) == count


def test_a_spec_without_it_costs_nothing(tmp_path):
    assert adapted(ElasticDLSpec.adapt, None, tmp_path / "adapted") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_what_json_cannot_hold_is_refused(tmp_path, value):
    with pytest.raises(UserCodeError, match=r"Spec of m\.py must return"):
        adapted(lambda self: value, Source(4), tmp_path)
    assert not (tmp_path / "adapted.json").exists()


def test_the_first_process_has_what_the_others_read(tmp_path):
    value = adapted(lambda self: {"values": ("a", "b"), 3: 1}, Source(4), tmp_path)
    assert value == {"values": ["a", "b"], "3": 1}
    assert json.loads((tmp_path / "adapted.json").read_text())["value"] == value


def test_what_it_raises_is_the_users_error(tmp_path):
    def look(self, records):
        raise KeyError("salary")

    with pytest.raises(UserCodeError, match="salary"):
        adapted(look, Source(4), tmp_path)


def test_examples_are_made_where_they_are_declared(tmp_path):
    assert adapted(lambda _, examples: sum(examples), Source(4), tmp_path, examples=[1, 2]) == 3


class ColumnSource(Source):
    layout = Layout((Column("t", "bytes"), Column("w", "int64", (None,))))

    def read(self, ids):
        texts = np.array([str(number).encode() for number in ids], dtype=object)
        return [texts, Ragged(np.array(ids), np.arange(len(ids)) + 1)]


def test_records_with_columns_are_what_create_dataset_gets(tmp_path):
    def look(self, records):
        return [[row["t"].decode(), row["w"].tolist()] for row in records]

    expected = [[str(number), [number]] for number in range(5)]
    assert adapted(look, ColumnSource(5), tmp_path) == expected


def test_arrays_of_numpy_become_lists(tmp_path):
    value = {"mean": np.array([0.1, 2], np.float32), "count": np.int64(3), "words": [np.str_("a")]}
    expected = {"mean": [float(np.float32(0.1)), 2.0], "count": 3, "words": ["a"]}
    assert adapted(lambda self: value, Source(4), tmp_path) == expected
