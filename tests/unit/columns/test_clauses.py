"""COLUMN clauses are checked before any row is read."""

import pytest

from edl_horovod.columns.clauses import Category, Clause, read_clauses, require_columns
from edl_horovod.errors import ConfigError

HASHED = {"kind": "category_hash", "name": "role", "num_buckets": 10}


def read(*clauses, parts=("deep", "wide")):
    return read_clauses(list(clauses), parts=parts)


def test_a_name_stands_for_the_column_as_it_is_found():
    assert read("age") == read({"name": "age"}) == (Clause(kind="inferred", name="age"),)


def test_an_embedding_is_of_a_column_or_of_a_category():
    inner = Category(kind="category_hash", name="role", num_buckets=10)
    assert read({"kind": "embedding", "of": HASHED, "dimension": 4, "combiner": "sum"}) == (
        Clause(kind="embedding", category=inner, dimension=4, combiner="sum"),
    )
    (clause,) = read({"kind": "embedding", "name": "role", "dimension": 4, "for": "deep"})
    assert (clause.category, clause.part) == (Category(kind="vocabulary", name="role"), "deep")


def test_a_cross_reads_all_of_its_columns():
    bucket = {"kind": "bucket", "name": "age", "borders": [30, 50]}
    (clause,) = read({"kind": "cross", "of": ["role", bucket], "num_buckets": 100})
    assert clause.columns == ("role", "age")


OF_A = {"kind": "embedding", "of": "a"}
BUCKET = {"kind": "bucket", "name": "a"}
NUMERIC = {"kind": "numeric", "name": "a"}


@pytest.mark.parametrize(
    ("clause", "detail"),
    [
        ({"kind": "embedings", "of": "a", "dimension": 2}, "'embedding'"),
        ({"kind": "sparse", "name": "a"}, "sparse column"),
        ({"kind": "weighted_category", "name": "a"}, "weights of"),
        (OF_A, "embedding .*'dimension'"),
        *(({**OF_A, "dimension": dimension}, "whole number from 1") for dimension in (0, True)),
        ({**OF_A, "of": NUMERIC, "dimension": 2}, "numeric .*vocabulary, category_id"),
        ({**OF_A, "dimension": 2, "combiner": "max"}, "sum, mean, sqrtn"),
        *(({**BUCKET, "borders": borders}, "borders") for borders in ([1, 3, 2], [1, 1])),
        *(({**BUCKET, "borders": borders}, "list of numbers") for borders in ([], ["1"])),
        ({"kind": "cross", "of": ["a"], "num_buckets": 5}, "cross"),
        ({**NUMERIC, "size": 3}, "numeric .*'size'.*shape"),
        ({**NUMERIC, "name": ""}, "a column"),
        ({**NUMERIC, "for": "dense"}, "part 'dense'"),
        ({"kind": "category_id", "name": "a", "num_buckets": 10**9}, "to 10,000,000"),
        ({"kind": "indicator", "of": {**HASHED, "num_buckets": 10**6}}, "most 10,000"),
        (3, "COLUMN 3"),
    ],
)
def test_what_is_no_clause_is_refused(clause, detail):
    with pytest.raises(ConfigError, match=detail):
        read(clause)


def test_a_model_without_parts_takes_no_for():
    with pytest.raises(ConfigError, match="'deep'"):
        read({"name": "a", "for": "deep"}, parts=("deep",))


def test_a_column_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'roles'.*'role'"):
        require_columns(read("roles"), ["role", "age"])
