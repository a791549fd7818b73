"""Models of tables on Parquet in whole jobs: trained, evaluated, and asked about new rows."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.records.examples import read_examples
from edl_horovod.records.reader import Reader
from edl_horovod.sql.metrics import probability_metrics, regression_metrics
from tests.frameworks import FIRST_IN_CI

ZOO = Path(__file__).parents[2] / "model_zoo"
ROLES = np.array(["clerk", "cook", "chief"])


@pytest.fixture
def tables(tmp_path):
    """Rows to train on, in two row groups and more, the same to validate on, and new ones.

    The unit of their dates differs, and the new ones have no label.
    """
    random = np.random.default_rng(1)
    num_rows = 600
    role, age = random.integers(0, 3, num_rows), random.integers(18, 65, num_rows)
    table = pa.table(
        {
            "role": ROLES[role],
            "age": age,
            "hired": np.array(random.integers(10_000, 11_000, num_rows), "datetime64[D]"),
            "full": random.random(num_rows) < 0.5,
            "salary": 20_000.0 * role + 500.0 * age,
            "paid": np.where(20_000.0 * role + 500.0 * age > 40_000, "well", "badly"),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    pq.write_table(with_dates(table, pa.timestamp("ns")), tmp_path / "held_out.parquet")
    new = table.slice(0, 50).drop_columns(["salary", "paid"])
    pq.write_table(with_dates(new, pa.timestamp("ms", "UTC")), tmp_path / "new.parquet")
    return table


def with_dates(table, kind):
    place = table.schema.get_field_index("hired")
    return table.set_column(place, "hired", table["hired"].cast(kind))


def predictions(folder, shapes):
    with Reader.open(str(folder)) as reader:
        return read_examples(list(reader), shapes)


def train(start, tmp_path, written_in, model_def, *settings):
    return start(
        "train",
        f"framework={written_in}",
        f"model_zoo={ZOO}",
        f"model_def={model_def}",
        f"data={tmp_path}/rows.parquet",
        f"validation_data={tmp_path}/held_out.parquet",
        f"output={tmp_path}/model",
        "launch.np=2",
        "train.batch_size=50",
        "train.epochs=8",
        *settings,
    ).succeed()


@pytest.mark.long
@pytest.mark.parametrize("written_in", FIRST_IN_CI)
def test_a_number_of_a_table_is_learned_evaluated_and_served(start, tables, tmp_path, written_in):
    settings = ("params.label=salary", "params.columns=[role,age,full,hired]")
    settings += ("train.saved_model=true",)
    job = train(start, tmp_path, written_in, "regressor.DNN", *settings)
    messages = [e.event.message for e in job.events("log") if e.event.message.startswith("column ")]
    assert messages[2] == "column hired: dates, read as year, month, weekday"
    assert job.events("evaluation")[-1].event.metrics["absolute_error"] < 5_000

    served = {"keras": "saved_model", "torch": "model.pt2"}[written_in]
    assert (tmp_path / "model" / served).exists()
    trained_model, output = f"trained_model={tmp_path}/model", f"output={tmp_path}/evaluated"
    start("evaluate", trained_model, f"data={tmp_path}/rows.parquet", output).succeed()
    metrics = json.loads((tmp_path / "evaluated" / "metrics.json").read_text())
    last = job.events("evaluation")[-1].event.metrics
    assert metrics["absolute_error"] == pytest.approx(last["absolute_error"], rel=1e-4)

    output = f"output={tmp_path}/predicted"
    start("predict", trained_model, f"data={tmp_path}/new.parquet", output).succeed()
    predicted = predictions(tmp_path / "predicted", {"prediction": ()})["prediction"]
    assert regression_metrics(tables["salary"].to_numpy()[:50], predicted).r2 > 0.8


@pytest.mark.parametrize("written_in", FIRST_IN_CI)
@pytest.mark.further
def test_a_class_of_a_table_is_learned_and_predicted(start, tables, tmp_path, written_in):
    clauses = "params.columns=[role,{kind: bucket, name: age, borders: [30, 40, 50]},{name: full}]"
    settings = ("params.label=paid", "params.class_weights=auto", clauses)
    train(start, tmp_path, written_in, "classifier.wide_and_deep", *settings)
    classes = json.loads((tmp_path / "model" / "adapted.json").read_text())["classes"]["values"]
    assert classes == ["badly", "well"]

    trained_model, output = f"trained_model={tmp_path}/model", f"output={tmp_path}/predicted"
    start("predict", trained_model, f"data={tmp_path}/new.parquet", output).succeed()
    predicted = predictions(tmp_path / "predicted", {"class": (), "probabilities": (2,)})
    assert predicted["class"].tolist() == predicted["probabilities"].argmax(axis=1).tolist()
    truth = np.array([classes.index(label) for label in tables["paid"].to_pylist()[:50]])
    assert probability_metrics(truth, predicted["probabilities"], classes).auc > 0.9
