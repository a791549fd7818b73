"""What a column holds is decided by all of its rows."""

import csv
import io
import json
import random

import pytest

from edl_horovod.columns import Column, infer
from edl_horovod.columns.infer import MAX_VALUES


def column(*cells, kind=None):
    kinds = {} if kind is None else {"x": kind}
    return infer(({"x": cell} for cell in cells), kinds=kinds)["x"]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        *((cells, "number") for cells in (["1", "2.5", "-3e2", ".5", "7."], ["0", "0.5"])),
        (["1", "NaN", "3"], "number"),
        (["10115", "10117", "D-1"], "text"),  # The last of a million rows may be the one.
        (["01067", "10115"], "text"),  # A postal code that would lose its 0.
        (["NaN"], "text"),  # Nothing says that this is a column of numbers.
        *((cells, "text") for cells in (["Nan", "Ann", "Bob"], ["1", "Nan"], ["", ""])),
        *(([cell], "text") for cell in ("1_000", "inf", "1e999", " 1", "\u0661")),
    ],
)
def test_a_column_is_of_numbers_only_where_every_cell_is_one(cells, kind):
    assert column(*cells).kind == kind


def test_empty_cells_count_as_the_mean_or_as_an_empty_text():
    numbers, texts = column("1", "", "NaN", "3"), column("a", "", "b", "a")
    assert (numbers.num_empty, numbers.first_empty, numbers.mean) == (2, 1, 2.0)
    assert (texts.num_empty, texts.first_empty) == (1, 1)
    assert texts.vocabulary == ("a", "b")


def test_a_cell_that_a_row_lacks_is_empty():
    columns = infer([{"a": "1"}, {"b": "x"}, {"a": "2", "b": "y"}])
    assert (columns["a"].num_empty, columns["a"].first_empty) == (1, 1)
    assert (columns["b"].num_empty, columns["b"].first_empty) == (1, 0)


def test_mean_and_deviation_are_those_of_all_numbers():
    numbers = random.Random(1)
    values = [1e6 + numbers.random() for _ in range(1000)]
    inferred = column(*map(str, values))
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert inferred.mean == pytest.approx(mean, rel=1e-12)
    assert inferred.deviation == pytest.approx(deviation, rel=1e-6)
    assert column("5", "5").deviation == 1


def test_the_vocabulary_is_the_same_in_any_order_of_rows():
    cells = ["b", "a", "c", "c", "", "b"]
    orders = [random.Random(seed).sample(cells, len(cells)) for seed in range(5)]
    assert {column(*order).vocabulary for order in orders} == {("b", "c", "a")}


def test_too_many_values_are_no_vocabulary():
    inferred = column(*(f"v{number}" for number in range(MAX_VALUES + 1)))
    assert (inferred.kind, inferred.vocabulary) == ("text", ())
    assert "10000" in str(inferred)


def test_a_column_may_be_known_to_be_of_texts():
    assert column("1", "2", "2", kind="text").vocabulary == ("2", "1")


@pytest.mark.parametrize(("cells", "said"), [(["1", "D-1"], "'D-1' in row 2"), ([""], "no number")])
def test_a_column_that_must_be_of_numbers_and_is_not_names_the_row(cells, said):
    with pytest.raises(ValueError, match=said):
        column(*cells, kind="number")


def test_what_was_found_is_told_and_kept():
    table = "zip,age,name\n10115,31,Nan\nD-1,,Ann\n10117,33,\n"
    columns = infer(csv.DictReader(io.StringIO(table)))
    assert [str(column_read) for column_read in columns.values()] == [
        "zip: texts, 3 values (row 2 has 'D-1')",
        "age: numbers, mean 32, deviation 1; 1 empty, which count as 32",
        "name: texts, 2 values (row 1 has 'Nan'); 1 empty, which count as an empty text",
    ]
    for column_read in columns.values():
        assert Column.from_json(json.loads(json.dumps(column_read.to_json()))) == column_read


def test_numbers_that_are_categories_have_a_vocabulary_however_they_are_written():
    rows = [{"n": text} for text in ("2", "1", "1.0", "", "+1", "NA")]
    assert infer(rows, categories=["n"])["n"].vocabulary == ("1.0", "nan", "2.0")
    assert infer(rows)["n"].vocabulary == ()
