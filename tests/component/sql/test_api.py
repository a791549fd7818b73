"""Parameters of the call in Python: on each engine a value arrives as it is."""

import datetime
import decimal

import numpy as np
import pytest

import edl_horovod
from edl_horovod.errors import ConfigError
from edl_horovod.sql.api import bind
from edl_horovod.sql.parser import parse

NASTY = "O'Hara \\' \\\\ -- ; /* \" %s :other ü \n' OR 1=1 --"


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb", "duckdb"])
def test_a_value_arrives_as_it_is(name, request, tmp_path):
    if name == "duckdb":
        pytest.importorskip("duckdb_engine")
        url = f"duckdb:///{tmp_path}/some.duckdb"
    else:
        url = request.getfixturevalue(name).url
    parameters = {
        "text": NASTY,
        "less": -1,
        "count": np.int64(7),
        "half": np.float32(0.5),
        "exact": decimal.Decimal("12.50"),
        "nothing": None,
        "yes": True,
        "day": datetime.date(2026, 1, 31),
    }
    result = edl_horovod.sql(
        "SELECT :text AS a, ':text' AS b, 5 -:less AS c, :count + 0 AS d, :half + 0 AS e, "
        ":exact + 0 AS f, :nothing IS NULL AS g, CASE WHEN :yes THEN 1 ELSE 0 END AS h, :day AS i",
        db=url,
        models=tmp_path / "models",
        parameters=parameters,
    )
    (row,) = result.rows
    assert row[0] == NASTY
    assert row[1:4] == (":text", 6, 7)
    assert tuple(map(float, row[4:6])) == (0.5, 12.5)
    assert (bool(row[6]), row[7], row[8]) == (True, 1, "2026-01-31")


@pytest.mark.parametrize("dialect", ["sqlite", "mysql"])
def test_lists_and_dicts_are_values_of_attributes(dialect):
    text = "SELECT * FROM t TRAIN regressor.DNN WITH hidden_units=:units, train.nulls=:nulls INTO m"
    values = {"units": [10, -5], "nulls": {"a": "it's \\ that", "b": None, 3: True}}
    (statement,) = parse(bind(text, values, dialect), dialect)
    assert statement.values() == {"hidden_units": values["units"], "train.nulls": values["nulls"]}


@pytest.mark.parametrize(
    "parameters",
    [{"a": object()}, {"a": float("nan")}, {"a": "\0"}, {"a": b"x"}, {"a": 1, "b": 2}],
    ids=["object", "nan", "zero byte", "bytes", "unused"],
)
def test_what_no_literal_holds_or_no_statement_names_is_an_error(parameters, sqlite, tmp_path):
    with pytest.raises(ConfigError):
        edl_horovod.sql(
            "SELECT :a", db=sqlite.url, models=tmp_path / "models", parameters=parameters
        )
