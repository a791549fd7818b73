"""Columns that have types hold what these say; one pass over blocks of rows finds the rest."""

import numpy as np
import pytest

from edl_horovod.columns.infer import MAX_VALUES, Column
from edl_horovod.columns.typed import date_parts, infer_typed
from edl_horovod.errors import DataError
from edl_horovod.records.columns import Ragged


def texts(*values):
    array = np.empty(len(values), object)
    array[:] = [value.encode() for value in values]
    return array


def infer(values, kind=None, num_blocks=1):
    blocks = [{"x": part} for part in np.array_split(values, num_blocks)]
    return infer_typed(blocks, kinds={} if kind is None else {"x": kind})["x"]


@pytest.mark.parametrize(
    ("values", "kind", "data_type"),
    [
        (np.array([1, 2]), "number", "integer"),
        (np.array([1, 2], np.uint8), "number", "integer"),
        (np.array([1.5, 2]), "number", "number"),
        (np.array([True, False]), "boolean", "boolean"),
        (texts("1", "2"), "text", "text"),  # A text that looks like a number stays one.
        (np.array(["2020-01-01"], "datetime64[D]"), "date", "date"),
        (np.array(["2020-01-01"], "datetime64[us]"), "date", "timestamp"),
    ],
)
def test_a_column_is_what_its_type_says(values, kind, data_type):
    column = infer(values)
    assert (column.kind, column.data_type) == (kind, data_type)
    assert Column.from_json(column.to_json()) == column


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 100])
def test_mean_and_deviation_are_those_of_all_rows_however_they_are_cut(num_blocks):
    values = 1e9 + np.random.default_rng(0).random(100)
    column = infer(values, num_blocks=num_blocks)
    assert column.mean == pytest.approx(values.mean(), rel=1e-15)
    assert column.deviation == pytest.approx(values.std(), rel=1e-6)
    assert (column.lowest, column.highest) == (values.min(), values.max())


def test_empty_cells_are_counted_and_told():
    column = infer(np.array([1.0, 3.0, np.nan, np.nan]), num_blocks=2)
    assert (column.num_empty, column.first_empty, column.mean) == (2, 2, 2.0)
    assert str(column).endswith("2 empty, which count as 2")


def test_a_vocabulary_has_the_commonest_first_and_ends_where_there_are_too_many():
    assert infer(texts("b", "a", "c", "a"), num_blocks=2).vocabulary == ("a", "b", "c")
    assert infer(texts(*map(str, range(MAX_VALUES + 1))), num_blocks=3).vocabulary == ()


def test_a_column_in_which_every_row_has_another_value_is_told():
    assert str(infer(texts(*map(str, range(30))))) == "x: texts, 30 values, each once"
    assert str(infer(texts(*map(str, range(30)), "1"))) == "x: texts, 30 values"


def test_whole_numbers_are_a_vocabulary_only_where_that_is_asked_for():
    values = np.array([7, 7, 3])
    assert infer(values).kind == "number"
    assert infer(values, "text").vocabulary == ("7", "3")


def test_dates_have_the_parts_that_differ():
    days = np.array(["2020-01-01", "2020-03-01"], "datetime64[D]")
    assert infer(days, num_blocks=2).parts == ("month", "weekday")
    times = np.array(["2020-01-01T05", "2021-01-01T07"], "datetime64[s]")
    assert infer(times).parts == ("year", "weekday", "hour")


def test_the_parts_of_a_date_are_those_of_the_calendar():
    parts = date_parts(np.array(["1969-12-31T23:59:59", "2024-02-29T12:00:00"], "datetime64[us]"))
    assert {part: values.tolist() for part, values in parts.items()} == {
        "year": [1969, 2024],
        "month": [12, 2],
        "weekday": [2, 3],
        "hour": [23, 12],
    }


@pytest.mark.parametrize(
    ("values", "kind", "detail"),
    [
        (np.array([1.0, np.inf]), None, "'x' .*row 2"),
        (np.array([np.nan]), None, "'x' .*1 rows"),
        (texts("a"), "number", "'x' .*texts"),
        (np.zeros((2, 3)), None, "'x' .*lists"),
        (Ragged(np.zeros(3), np.array([1, 3])), None, "'x' .*lists"),
        (np.array([b"\xff"], object), None, "'x' .*bytes"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(values, kind, detail):
    with pytest.raises(DataError, match=detail):
        infer_typed([{"x": values}], kinds={} if kind is None else {"x": kind})
