"""Features of columns: the same of a training and of what is predicted."""

import numpy as np
import pytest

from edl_horovod.columns.clauses import read_clauses, vocabulary_columns
from edl_horovod.columns.features import plan_features
from edl_horovod.columns.typed import infer_typed
from edl_horovod.errors import ConfigError, DataError
from tests.unit.columns.test_typed import texts

CELLS = {
    "age": np.array([20, 40, 60]),
    "role": texts("cook", "clerk", "cook"),
    "full": np.array([True, False, True]),
    "hired": np.array(["2020-01-06", "2020-02-04", "2020-03-04"], "datetime64[D]"),
    "tags": texts("0,2", "", "1, 9"),
    "point": texts("1;2", "3;4", "5;6"),
}
NEW = {**CELLS, "role": texts("chief", "cook", "chef"), "age": np.array([40.0, np.nan, 0.0])}


def features(*clauses, cells=CELLS, parts=("deep",)):
    read = read_clauses(list(clauses), parts=parts)
    columns = infer_typed([cells], categories=vocabulary_columns(read))
    return plan_features(columns, read, parts=parts)


def encoded(*clauses, of=CELLS, **options):
    return features(*clauses, **options).encode(of)


def test_columns_are_read_as_they_were_found():
    plan = features("age", "role", "full", "hired")
    encoding = plan.encode(CELLS)
    deviation = CELLS["age"].std()
    ages = [-20 / deviation, 0, 20 / deviation]
    np.testing.assert_allclose(encoding["deep_numbers"], np.transpose([ages, [1, 0, 1]]), rtol=1e-6)
    tables = plan.parts["deep"].tables
    assert [table.num_codes for table in tables] == [3, 13, 7]
    assert [encoding[table.input][:, 0].tolist() for table in tables] == [
        [1, 2, 1],
        [1, 2, 3],
        [0, 1, 2],
    ]


def test_a_new_value_is_unknown_and_an_empty_number_counts_as_the_mean():
    plan = features("age", "role")
    encoding = plan.encode(NEW)
    assert encoding["codes_0"][:, 0].tolist() == [0, 1, 0]
    assert encoding["deep_numbers"][:2, 0].tolist() == [0, 0]
    assert plan.first_unknown(encoding, NEW) == {"role": "chief"}
    assert plan.newly_empty(NEW) == ["age"]
    assert plan.newly_empty(CELLS) == []
    assert plan.first_unknown(plan.encode(CELLS), CELLS) == {}


@pytest.mark.parametrize(
    ("clause", "codes"),
    [
        ({"kind": "bucket", "name": "age", "borders": [40, 50]}, [[0], [1], [2]]),
        ({"kind": "category_id", "name": "age", "num_buckets": 61}, [[21], [41], [61]]),
        ({"kind": "seq_category_id", "name": "tags", "num_buckets": 3}, [[2, 4], [0, 0], [3, 1]]),
    ],
)
def test_categories_become_codes(clause, codes):
    assert encoded(clause)["codes_0"].tolist() == codes


def test_hashes_are_the_same_wherever_they_are_computed():
    hashed = {"kind": "category_hash", "name": "role", "num_buckets": 1000}
    crossed = {"kind": "cross", "of": ["role", "full"], "num_buckets": 1000}
    assert encoded(hashed)["codes_0"][:, 0].tolist() == [804, 20, 804]
    codes = encoded(crossed)["codes_0"][:, 0].tolist()
    assert codes[0] == codes[2] != codes[1]


CATEGORIES = [
    {"kind": "embedding", "of": "n", "dimension": 2},
    {"kind": "indicator", "of": "n"},
    {"kind": "category_hash", "name": "n", "num_buckets": 1000},
    {"kind": "cross", "of": ["n", "n"], "num_buckets": 1000},
]
NUMBERS = {"n": np.array([7, -3, 0, 7])}


@pytest.mark.parametrize("clause", CATEGORIES, ids=lambda clause: clause["kind"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
@pytest.mark.parametrize("trained", ["int64", "float64", "float32"])
def test_a_whole_number_has_the_same_code_in_columns_of_all_types(trained, dtype, clause):
    plan = features(clause, cells={"n": NUMBERS["n"].astype(trained)})
    expected = plan.encode({"n": NUMBERS["n"].astype(trained)})
    encoding = plan.encode({"n": NUMBERS["n"].astype(dtype)})
    for name, values in expected.items():
        assert encoding[name].tolist() == values.tolist()
        assert len(np.unique(values, axis=0)) == 3


def test_whole_numbers_that_are_categories_have_a_vocabulary():
    plan = features({"kind": "embedding", "of": "n", "dimension": 2}, "n", cells=NUMBERS)
    (table,) = plan.parts["deep"].tables
    assert table.num_codes == 4
    new = {"n": np.array([0.0, 7.0, 5.0, 0.5])}
    encoding = plan.encode(new)
    assert encoding["codes_0"][:, 0].tolist() == [3, 1, 0, 0]
    assert plan.first_unknown(encoding, new) == {"n": "5"}
    assert features("n", cells=NUMBERS).columns[0].vocabulary == ()  # Nobody reads one.


def test_an_empty_number_is_a_category_if_the_training_had_it():
    clause = {"kind": "embedding", "of": "n", "dimension": 2}
    cells = {"n": np.array([2.0, np.nan, 2.0])}
    plan = features(clause, cells=cells)
    assert plan.encode(cells)["codes_0"][:, 0].tolist() == [1, 2, 1]
    assert plan.encode({"n": np.array([2, 3])})["codes_0"][:, 0].tolist() == [1, 0]
    new = {"n": np.array([np.nan, 7.0])}
    plan = features(clause, cells=NUMBERS)
    assert plan.first_unknown(plan.encode(new), new) == {"n": "nan"}


@pytest.mark.parametrize(("dtype", "number"), [("float64", 2.0**53), ("float32", 2.0**24)])
def test_a_number_that_may_have_been_another_integer_is_refused(dtype, number):
    plan = features({"kind": "category_hash", "name": "n", "num_buckets": 9}, cells=NUMBERS)
    assert plan.encode({"n": np.array([number - 1, np.inf], dtype)})["codes_0"].shape == (2, 1)
    with pytest.raises(DataError, match="column 'n'"):
        plan.encode({"n": np.array([number], dtype)})


def test_a_model_of_an_earlier_version_keeps_its_codes():
    """It has no vocabulary of numbers, and hashed them as Python writes them."""
    clauses = read_clauses([{"kind": "embedding", "of": "n", "dimension": 2}], parts=("deep",))
    for numbers, codes in (([1, 2], [583, 437]), ([1.0, 2.0], [765, 564])):
        columns = infer_typed([{"n": np.array(numbers)}])
        plan = plan_features(columns, clauses, parts=("deep",))
        assert plan.parts["deep"].tables[0].num_codes == 1000
        for dtype in ("int64", "float64"):
            encoding = plan.encode({"n": np.array(numbers).astype(dtype)})
            assert encoding["codes_0"][:, 0].tolist() == codes


def test_an_indicator_counts_categories():
    encoding = encoded({"kind": "indicator", "of": "role"})
    assert encoding["deep_numbers"].tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    tags = {"kind": "seq_category_id", "name": "tags", "num_buckets": 3}
    encoding = encoded({"kind": "indicator", "of": tags})["deep_numbers"]
    assert encoding.tolist() == [[0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]]


def test_a_text_may_hold_several_numbers():
    clause = {"kind": "dense", "name": "point", "shape": [2], "separator": ";"}
    assert encoded(clause)["deep_numbers"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_parts_read_what_is_for_them_and_share_codes():
    clauses = [{"kind": "embedding", "of": "role", "dimension": 4, "for": "deep"}]
    plan = features(*clauses, cells={"role": CELLS["role"]}, parts=("deep", "wide"))
    deep, wide = plan.parts["deep"].tables[0], plan.parts["wide"].tables[0]
    assert (deep.input, deep.dimension) == (wide.input, 4)
    assert wide.dimension == 0
    assert list(plan.codes) == ["codes_0"]


@pytest.mark.parametrize(
    ("clause", "detail"),
    [
        ({"kind": "numeric", "name": "role"}, "'role' is a number"),
        ({"kind": "category_id", "name": "age", "num_buckets": 60}, "'age' .* 0 to 59"),
        ({"kind": "bucket", "name": "role", "borders": [1]}, "'role' is a number"),
        ({"kind": "seq_category_id", "name": "age", "num_buckets": 9}, "'age' .* text"),
    ],
)
def test_a_clause_that_does_not_fit_its_column_is_refused(clause, detail):
    with pytest.raises(ConfigError, match=detail):
        features(clause)


def test_without_any_column_there_is_nothing_to_learn_from():
    with pytest.raises(ConfigError, match="the label"):
        features(cells={})
