"""Values that are new are counted over all shards, and the first one is named."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.columns.summary import TableSummary, summarize
from edl_horovod.sql.unknown_values import unknown_values
from tests.unit.columns.test_typed import texts

TRAINING = {
    "role": texts("cook", "clerk", "cook"),
    "name": texts("a", "b", "c"),
    "level": np.array([1, 2, 1]),
    "full": np.array([True, False, True]),
    "label": np.array([1.0, 2.0, 3.0]),
}


@pytest.fixture
def adapted():
    options = {"label": "label", "has_classes": False, "kinds": {"level": "text", "full": "text"}}
    summary = summarize(iter(()), [TRAINING], **options, tell=lambda line: None)
    assert TableSummary.from_json(summary.to_json()) == summary
    return {**summary.to_json(), "read": ["full", "level", "role"]}


def test_they_are_counted_for_each_column_that_is_read(adapted, tmp_path):
    roles = ["cook", "baker", "clerk", "judge", "cook", "judge"]
    levels = [1, 2, 2, 1, 3, 1]
    table = pa.table({"role": roles, "level": levels, "full": [True] * 6, "name": list("uvwxyz")})
    for number in range(2):
        part = tmp_path / f"part-{number}.parquet"
        pq.write_table(table.slice(3 * number, 3), part, row_group_size=2)
    unknown = unknown_values(adapted, sorted(tmp_path.glob("part-*")))
    assert [(new.column, new.num_rows, new.first, new.first_row) for new in unknown] == [
        ("level", 1, "3", 4),
        ("role", 3, "baker", 1),
    ]
    for new, named in zip(unknown, (("'3'", "row 5"), ("'baker'", "row 2")), strict=True):
        assert all(text in str(new) for text in (f"'{new.column}'", *named))


def test_where_all_are_known_there_is_nothing_to_tell(adapted, tmp_path):
    table = pa.table({"role": ["cook"], "level": [2], "full": [False]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert unknown_values(adapted, [tmp_path / "a.parquet"]) == []


def test_whole_numbers_of_a_column_with_empty_cells_are_known(adapted, tmp_path):
    """They are floating-point numbers there."""
    table = pa.table({"role": ["cook"] * 3, "level": [2.0, None, None], "full": [True] * 3})
    pq.write_table(table, tmp_path / "a.parquet")
    (new,) = unknown_values(adapted, [tmp_path / "a.parquet"])
    assert (new.column, new.num_rows, new.first, new.first_row) == ("level", 2, "nan", 1)


def test_of_a_model_that_keeps_no_columns_there_is_nothing_to_tell(tmp_path):
    pq.write_table(pa.table({"role": ["cook"]}), tmp_path / "a.parquet")
    assert unknown_values({}, [tmp_path / "a.parquet"]) == []
