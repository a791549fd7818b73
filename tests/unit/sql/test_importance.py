"""Columns that a model does not read are worth nothing; the others what scikit-learn says."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.errors import ConfigError, DataError, MissingDependency
from edl_horovod.sql.metrics import (
    draw,
    importances,
    regression_metrics,
    require_drawing,
    write_shuffled,
)

COLUMNS = ("strong", "weak", "unused")


@pytest.fixture
def shards(tmp_path):
    random = np.random.default_rng(0)
    values = {name: random.normal(size=900) for name in COLUMNS}
    table = pa.table({**values, "label": 3 * values["strong"] + values["weak"]})
    for number, start in enumerate(range(0, 900, 300)):
        pq.write_table(table.slice(start, 300), tmp_path / f"part-{number}.parquet")
    return sorted(tmp_path.glob("part-*"))


def predict(file):
    table = pq.read_table(file)
    predicted = 3 * table["strong"].to_numpy() + table["weak"].to_numpy()
    return {"prediction": predicted}


def r2_of(shards, shuffled):
    labels = pa.concat_tables(map(pq.read_table, shards))["label"].to_numpy()[shuffled.rows]
    return lambda outputs: regression_metrics(labels, outputs["prediction"]).r2


def test_the_columns_that_matter_come_first(shards, tmp_path):
    file = tmp_path / "shuffled.parquet"
    shuffled = write_shuffled(shards, file, COLUMNS, repeats=4)
    assert pq.read_metadata(file).num_rows == shuffled.num_records == 900 * 13
    ranking = importances(shuffled, predict(file), r2_of(shards, shuffled))
    assert [entry.column for entry in ranking] == ["strong", "weak", "unused"]
    # Shuffling adds twice the variance of what the column gives: 2 * 9 / 10 and 2 * 1 / 10.
    assert [entry.importance for entry in ranking] == pytest.approx([1.8, 0.2, 0], abs=0.1)
    assert ranking[-1].deviation == 0


def test_they_are_those_of_scikit_learn(shards, tmp_path):
    inspection = pytest.importorskip("sklearn.inspection")
    from sklearn.base import BaseEstimator

    class Model(BaseEstimator):
        def fit(self, x, y):
            return self

        def predict(self, x):
            return 3 * x[:, 0] + x[:, 1]

        def score(self, x, y):
            return regression_metrics(y, self.predict(x)).r2

    table = pa.concat_tables(map(pq.read_table, shards))
    x = np.stack([table[name].to_numpy() for name in COLUMNS], axis=1)
    labels = table["label"].to_numpy()
    known = inspection.permutation_importance(Model(), x, labels, n_repeats=40, random_state=0)
    shuffled = write_shuffled(shards, tmp_path / "s.parquet", COLUMNS, repeats=40)
    ranking = importances(shuffled, predict(tmp_path / "s.parquet"), r2_of(shards, shuffled))
    by_name = {entry.column: entry.importance for entry in ranking}
    assert [by_name[name] for name in COLUMNS] == pytest.approx(known.importances_mean, abs=0.06)


def test_of_many_rows_some_are_drawn_and_always_the_same(shards, tmp_path):
    files = [tmp_path / name for name in ("a.parquet", "b.parquet")]
    drawn = [write_shuffled(shards, file, ["weak"], repeats=1, max_rows=100) for file in files]
    assert drawn[0].num_rows == 100
    np.testing.assert_array_equal(drawn[0].rows, drawn[1].rows)
    assert pq.read_table(files[0]) == pq.read_table(files[1])
    whole = pa.concat_tables(map(pq.read_table, shards))
    assert pq.read_table(files[0])[:100]["label"] == whole.take(drawn[0].rows)["label"]


def test_one_row_says_nothing(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two rows"):
        write_shuffled([tmp_path / "a.parquet"], tmp_path / "b.parquet", ["x"])


def test_a_picture_that_cannot_be_drawn_is_refused_at_once(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    require_drawing(tmp_path / "bars.svg")
    for name in ("bars.txt", "nowhere/bars.png"):
        with pytest.raises(ConfigError, match=r"\.png"):
            require_drawing(tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # As if it were not installed.
    with pytest.raises(MissingDependency, match="matplotlib"):
        require_drawing(tmp_path / "bars.svg")


def test_a_picture_is_drawn(shards, tmp_path):
    pytest.importorskip("matplotlib")
    shuffled = write_shuffled(shards, tmp_path / "s.parquet", COLUMNS)
    ranking = importances(shuffled, predict(tmp_path / "s.parquet"), r2_of(shards, shuffled))
    draw(ranking, tmp_path / "bars.png", title="salaries")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
