"""Cells of new data are those of the training, or refused."""

import numpy as np
import pytest

from edl_horovod.columns.infer import infer
from edl_horovod.columns.summary import arrays_of, require_types, rows_of, text_cells
from edl_horovod.columns.typed import infer_typed
from edl_horovod.errors import DataError
from edl_horovod.records.examples import example
from tests.unit.columns.test_typed import texts

TYPED = infer_typed(
    [
        {
            "n": np.array([1, 2]),
            "d": np.array(["2020-01-01"] * 2, "datetime64[s]"),
            "t": texts("a", "b"),
        }
    ]
)
UNTYPED = infer([{"n": "1", "t": "a"}, {"n": "2", "t": "b"}])


def arrays(cells, columns):
    columns_read = arrays_of(cells, list(columns.values()))
    return {name: values.tolist() for name, values in columns_read.items()}


def test_records_of_texts_become_numbers_where_the_training_had_numbers():
    records = [example({"n": b"7", "t": b"x"}), example({"t": b"y"}), example({"n": b"NA"})]
    assert list(rows_of(records)) == [{"n": "7", "t": "x"}, {"t": "y"}, {"n": "NA"}]
    columns_read = arrays(text_cells(records, list(UNTYPED.values())), UNTYPED)
    assert columns_read["t"] == [b"x", b"y", b""]
    assert columns_read["n"][0] == 7
    assert np.isnan(columns_read["n"][1:]).all()


@pytest.mark.parametrize(
    ("cells", "columns", "detail"),
    [
        ({"n": texts("x7"), "t": texts("a")}, UNTYPED, "'n'.*'x7'"),
        ({"n": texts("5"), "d": texts("x"), "t": texts("a")}, TYPED, "'n'.*texts"),
    ],
)
def test_a_text_that_is_no_number_or_has_no_type_is_refused(cells, columns, detail):
    with pytest.raises(DataError, match=detail):
        arrays(cells, columns)


def test_dates_are_numbers_in_the_unit_of_the_training():
    cells = {"n": np.array([5]), "d": np.array([86_400]), "t": texts("a")}
    assert arrays_of(cells, list(TYPED.values()))["d"] == np.datetime64("1970-01-02")


@pytest.mark.parametrize(
    ("dtypes", "detail"),
    [
        ({"n": "int64", "d": "int64"}, "'t'"),
        ({"n": "O", "d": "int64", "t": "O"}, "'n'.*Received: texts"),
        ({"n": "int64", "d": "float64", "t": "O"}, "'d'.*Received: numbers"),
        ({"n": "int64", "d": "int64", "t": "bool"}, "'t'.*Received: booleans"),
    ],
)
def test_columns_of_other_types_are_refused(dtypes, detail):
    with pytest.raises(DataError, match=detail):
        require_types({name: np.dtype(kind) for name, kind in dtypes.items()}, [*TYPED.values()])


def test_whole_numbers_and_others_stand_for_each_other():
    for kind in ("float64", "uint8", "bool"):
        dtypes = {"n": np.dtype(kind), "d": np.dtype("int64"), "t": np.dtype("O")}
        require_types(dtypes, [*TYPED.values()])


def test_records_of_numbers_are_no_rows_of_texts():
    with pytest.raises(DataError, match="'n'"):
        list(rows_of([example({"n": [1.5]})]))


def test_an_empty_date_is_refused_in_the_training_and_later():
    dates = np.array(["2020-01-01", "NaT"], "datetime64[us]")
    with pytest.raises(DataError, match=r"'d'.*NaT"):
        infer_typed([{"d": dates}])
    with pytest.raises(DataError, match=r"'d'.*NaT"):
        arrays_of({"d": dates.view(np.int64)}, list(infer_typed([{"d": dates[:1]}]).values()))
