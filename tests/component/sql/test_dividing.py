"""Rows held back for a validation: each row is on one side, in order."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.errors import DataError
from edl_horovod.sql.dividing import part_folders, split_rows
from edl_horovod.sql.splitting import Split

NUM_ROWS = 1000


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    for number in range(2):
        rows = range(number * NUM_ROWS // 2, (number + 1) * NUM_ROWS // 2)
        columns = {"a": list(rows), "late": [int(row % 10 == 0) for row in rows]}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def rows_of(folder):
    files = sorted(folder.glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).column("a").to_pylist()]


@pytest.mark.parametrize(
    ("split", "share"),
    [
        (Split(kind="random", fraction=0.2), 0.2),
        (Split(kind="sequential", fraction=0.2), 0.2),
        (Split(kind="key", fraction=0.2, column=""), 0.2),
        (Split(kind="column", column="late"), 0.1),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_every_row_is_on_one_side(split, share, records, tmp_path):
    split_rows(records, tmp_path / "both", split, "a")
    training, validation = part_folders(tmp_path / "both")
    learned, held_back = rows_of(training), rows_of(validation)
    assert sorted(learned + held_back) == list(range(NUM_ROWS))
    assert learned == sorted(learned)
    assert held_back == sorted(held_back)
    assert len(held_back) == pytest.approx(share * NUM_ROWS, abs=0.05 * NUM_ROWS)


def test_a_side_without_rows_is_refused(records, tmp_path):
    split = Split(kind="sequential", fraction=0.0001)
    with pytest.raises(DataError, match="holds back 0 of 1,000 rows"):
        split_rows(records, tmp_path / "both", split)


def test_a_class_is_not_held_back_altogether(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    rows = np.arange(NUM_ROWS)
    split = Split(kind="random", fraction=0.2)
    held_back = int(np.flatnonzero(split.by_number(0, NUM_ROWS))[0])
    labels = np.where(rows == held_back, "rare", np.where(rows % 2, "odd", "even"))
    pq.write_table(pa.table({"a": rows, "label": labels}), folder / "0.parquet")
    split_rows(folder, tmp_path / "both", split, label="label")
    training, validation = part_folders(tmp_path / "both")
    assert held_back in rows_of(training)
    assert len(rows_of(validation)) > 100
