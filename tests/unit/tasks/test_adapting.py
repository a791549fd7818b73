"""What a spec is to know of all records is found out once, and the same for every process."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.spec import ElasticDLSpec
from edl_horovod.tasks.adapting import adapt


class Source:
    def __init__(self, count, fingerprint="f"):
        self.block_starts, self.block_counts = np.array([0, 3]), np.array([3, count - 3])
        self.fingerprint = fingerprint

    def read(self, ids):
        return [str(number).encode() for number in ids]


def loaded(function):
    methods = dict.fromkeys(ElasticDLSpec.__abstractmethods__, lambda self: None)
    kind = type("Spec", (ElasticDLSpec,), {**methods, "adapt": function})
    return SimpleNamespace(spec=kind(), label="Spec of m.py", zoo=Path("/zoo"))


def concrete():
    return loaded(ElasticDLSpec.adapt)


def test_all_records_are_looked_at_once_for_all_processes(tmp_path):
    calls, told = [], []

    def look(self, records, tell):
        calls.append(list(records))
        tell("seen")
        return {"number": len(calls[-1])}

    for _ in range(3):
        one = loaded(look)
        adapt(one, Source(5), tmp_path / "adapted", told.append)
        assert one.spec.adapted == {"number": 5}
    assert calls == [[b"0", b"1", b"2", b"3", b"4"]]
    assert told == ["seen"]


def test_other_records_are_looked_at_anew(tmp_path):
    def look(self, records):
        return sum(1 for _ in records)

    for count, fingerprint in ((5, "f"), (7, "g")):
        one = loaded(look)
        adapt(one, Source(count, fingerprint), tmp_path, print)
        assert one.spec.adapted == count


def test_a_spec_without_it_costs_nothing(tmp_path):
    one = concrete()
    adapt(one, None, tmp_path / "adapted", print)
    assert one.spec.adapted is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_what_json_cannot_hold_is_refused(tmp_path, value):
    with pytest.raises(UserCodeError, match=r"adapt of Spec of m\.py must return what JSON can"):
        adapt(loaded(lambda self: value), Source(4), tmp_path, print)
    assert not (tmp_path / "adapted.json").exists()


def test_the_first_process_has_what_the_others_read(tmp_path):
    one = loaded(lambda self: {"values": ("a", "b"), 3: 1})
    adapt(one, Source(4), tmp_path, print)
    assert one.spec.adapted == {"values": ["a", "b"], "3": 1}
    assert json.loads((tmp_path / "adapted.json").read_text())["value"] == one.spec.adapted


def test_what_it_raises_is_the_users_error(tmp_path):
    def look(self, records):
        raise KeyError("salary")

    with pytest.raises(UserCodeError, match=r"adapt of Spec of m\.py failed.*salary"):
        adapt(loaded(look), Source(4), tmp_path, print)
