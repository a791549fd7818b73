"""JSON lines as Python's json module writes them: columns whose types hold for all lines."""

import json

import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.text_lines import CHUNK_BYTES
from tests.columns import read_columns

FILLING = {"filling": "x" * (CHUNK_BYTES // 2)}


def write(path, rows, end="\n"):
    path.write_text("".join(json.dumps(row) + end for row in rows), newline="")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_an_object_in_a_line_is_a_record(tmp_path, end):
    rows = [
        {"x": n / 2, "n": n, "t": f"é {n}", "w": ["a"] * n, "in": {"y": [1, 2]}} for n in range(5)
    ]
    assert read_columns(write(tmp_path / "a.jsonl", rows, end), [4, 0]) == {
        "x": [2.0, 0.0],
        "n": [4, 0],
        "t": ["é 4".encode(), "é 0".encode()],
        "w": [[b"a"] * 4, []],
        "in.y": [[1, 2], [1, 2]],
    }


def test_the_type_of_a_column_holds_for_all_lines_of_all_files(tmp_path):
    write(tmp_path / "a.jsonl", [{"x": n, "d": "2026-01-02", **FILLING} for n in range(20)])
    write(tmp_path / "b.jsonl", [{"x": 0.5, "d": "later", **FILLING}])
    columns = read_columns(tmp_path)
    assert columns["x"] == [*map(float, range(20)), 0.5]
    assert columns["d"] == [b"2026-01-02"] * 20 + [b"later"]
    with Reader.open(str(tmp_path)) as reader:
        assert reader.index.num_chunks > 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"x": 1}\n{"x": \n', "JSON lines"),
        ('{"x": 1}\n{"x": "one"}\n', "JSON lines"),
        ("[1, 2]\n", "JSON lines"),
        ('{"x": 1}\n{"y": 1}\n', r"1 empty .*'x'"),
        ("\n\n", "no records"),
        ("", "no records"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, text, said):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=said):
        read_columns(tmp_path / "a.jsonl")


DAMAGE = ['{"x": 1', "x", "[1]", '{"x": 2}, ', "\x00\x01"]


@pytest.mark.parametrize("places", [[0], [7], [19], [3, 4], [0, 9, 19], range(20)])
def test_lines_that_are_no_objects_are_left_out_if_asked(tmp_path, caplog, places):
    lines = [json.dumps({"x": n, "t": f"line {n}"}) for n in range(20)]
    for number, place in enumerate(places):
        lines[place] = DAMAGE[number % len(DAMAGE)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"JSON .*=skip"):
        read_columns(path)
    whole = [n for n in range(20) if n not in places]
    if not whole:
        with pytest.raises(DataError, match="no records"):
            read_columns(path, damaged="skip")
        return
    assert read_columns(path, damaged="skip")["x"] == whole
    with Reader.open(str(path), damaged="skip") as reader:
        assert reader.index.files[0].skipped_records == len(places)
    assert caplog.text.count("data_plan.damaged=skip") == 2 * len(places)


def test_values_of_differing_types_are_no_damage(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": "one"}\n')
    with pytest.raises(DataError, match="the types"):
        read_columns(tmp_path / "a.jsonl", damaged="skip")


LARGE = 2**62 + 1


@pytest.mark.parametrize(
    ("values", "rounded"),
    [
        ([LARGE, LARGE + 2, 2**63 + 5], LARGE),
        ([2**53 + 1, 0.5], 2**53 + 1),
        ([0.5, -(2**53) - 1], -(2**53) - 1),
        ([0.5, 10**400], 10**400),
        ([[1, LARGE], [0.5]], LARGE),
        ([{"y": {"z": LARGE}}, {"y": {"z": 1e300}}], LARGE),
    ],
)
def test_integers_that_float64_would_round_are_refused(tmp_path, values, rounded):
    rows = [{"id": LARGE, "t": f"{LARGE} \\", "x": value} for value in values]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=rf"'x[.yz]*' .*a\.jsonl .* {rounded}, in"):
        read_columns(path)
    assert read_columns(path, columns=["id"]) == {"id": [LARGE] * len(rows)}


@pytest.mark.parametrize("has_two_files", [False, True])
def test_integers_of_another_run_or_file_are_not_rounded_either(tmp_path, has_two_files):
    integers = [{"x": LARGE, **FILLING}] * 3
    fractions = [{"x": 0.5, **FILLING}] * 3
    if has_two_files:
        write(tmp_path / "a.jsonl", integers)
        write(tmp_path / "b.jsonl", fractions)
    else:
        write(tmp_path / "a.jsonl", [*integers, *fractions])
    with pytest.raises(DataError, match=rf"'x' of .*a\.jsonl.* {LARGE}"):
        read_columns(tmp_path)


def test_numbers_that_float64_holds_are_no_error(tmp_path):
    values = [1e300, 2**53, 2**60, -(2**63), 0.1234567890123456789, 3]
    rows = [{"id": LARGE, "t": str(LARGE), "x": value} for value in values]
    columns = read_columns(write(tmp_path / "a.jsonl", rows))
    assert columns["x"] == values
    assert columns["id"] == [LARGE] * len(values)
