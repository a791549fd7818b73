"""The models of the zoo, from PNG or CSV files to a trained model (F2, F3, F23, F24)."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.records.reader import Reader
from tests.frameworks import NEEDS_KERAS, NEEDS_TORCH

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "model_zoo"


@pytest.fixture
def records(shared_folder):
    """Prepared records by kind of picture: folder with train/ and test/."""

    def make(kind, model_def):
        with shared_folder(kind) as folder:
            if not (folder / "test").exists():
                _make_records(folder, kind, model_def)
            return folder

    return make


def _make_records(folder, kind, model_def):
    maker = [sys.executable, str(ZOO / "sample_images.py"), kind, str(folder / "images")]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    for part in ("train", "test"):
        prepare = [sys.executable, "-m", "edl_horovod", "prepare", "-q", f"model_zoo={ZOO}"]
        prepare += [f"model_def={model_def}", "records_per_shard=512", "processes=1"]
        prepare += [f"data={folder}/images/{part}", f"output={folder}/{part}"]
        subprocess.run(prepare, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "model_def",
    [
        # `make demo` trains this one.
        pytest.param("mnist_functional_api", marks=[pytest.mark.further, NEEDS_KERAS]),
        pytest.param("mnist_subclass", marks=[pytest.mark.further, NEEDS_KERAS]),
        pytest.param("mnist_torch", marks=[pytest.mark.further, NEEDS_TORCH]),
    ],
)
def test_models_of_digits_learn_on_two_ranks(start, records, model_def):
    folder = records("digits", model_def)
    job = start(
        "train",
        f"model_zoo={ZOO}",
        f"model_def={model_def}",
        f"data={folder}/train",
        f"validation_data={folder}/test",
        "launch.np=2",
        "train.batch_size=64",
        "train.epochs=4",
    ).succeed()
    assert job.events("evaluation")[-1].event.metrics["accuracy"] >= 0.95


@pytest.mark.further
@pytest.mark.parametrize("model_def", ["cifar10_functional_api", "cifar10_subclass"])
@NEEDS_KERAS
def test_models_of_patches_of_photographs_learn(start, records, model_def):
    folder = records("patches", model_def)
    job = start(
        "train",
        f"model_zoo={ZOO}",
        f"model_def={model_def}",
        f"data={folder}/train",
        f"validation_data={folder}/test",
        "launch.np=2",
        "train.batch_size=32",
        "train.max_steps=12",
        "train.epochs=20",
    ).succeed()
    steps = job.events("step")
    assert steps[-1].event.step == 12
    assert steps[-1].event.loss < steps[0].event.loss


ROLES = {"clerk": 1.0, "cook": 2.0, "chief": 4.0}


def write_table(path, num_rows, *, has_label=True):
    random = np.random.default_rng(num_rows)
    columns = ["name", "age", "role", *(["salary"] if has_label else [])]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        for number in range(num_rows):
            role, age = random.choice(list(ROLES)), random.random()
            salary = [round(ROLES[role] + age, 3)] if has_label else []
            writer.writerow([f"n{number}", round(age, 3), role, *salary])


@pytest.mark.further
@pytest.mark.parametrize("model_def", ["regressor.DNN", "regressor.wide_and_deep.MagicalWAD"])
@NEEDS_KERAS
def test_models_of_a_table_with_text_and_numbers_learn(start, tmp_path, model_def):
    zoo = (f"model_zoo={ZOO}", f"model_def={model_def}")
    write_table(tmp_path / "train.csv", 400)
    write_table(tmp_path / "new.csv", 30, has_label=False)
    for part in ("train", "new"):
        command = [sys.executable, "-m", "edl_horovod", "prepare", "-q", *zoo, "processes=1"]
        command += [f"data={tmp_path}/{part}.csv", f"output={tmp_path}/{part}"]
        subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    model = tmp_path / "model"
    columns = "numeric=['age'], categorical=['role'], label='salary'"
    job = start(
        "train",
        *zoo,
        f"data={tmp_path}/train",
        f"validation_data={tmp_path}/train",
        f"output={model}",
        "launch.np=2",
        "train.batch_size=32",
        "train.epochs=10",
        f"params={columns}, hidden_units=[10, 100, 20, 5], learning_rate=0.01",
    ).succeed()
    assert job.events("evaluation")[-1].event.metrics["absolute_error"] < 0.2
    start("predict", f"trained_model={model}", f"data={tmp_path}/new").succeed()
    with Reader.open(str(tmp_path / "out")) as reader:
        assert len(reader) == 30


MIXED = """\
zip,age,name,rooms,salary
10115,31,Ann,1,3.5
10117,,Nan,2,4
D-1,45,Bob,NaN,5
01067,52,,4,5.5
"""
NEW = """\
zip,age,name,rooms
99999,,Nan,
,44,Zoe,3
"""


@NEEDS_KERAS
@pytest.mark.further
def test_a_table_of_which_no_cell_tells_what_its_column_holds(start, tmp_path):
    zoo = (f"model_zoo={ZOO}", "model_def=regressor.DNN")
    for part, text in (("train", MIXED), ("new", NEW)):
        (tmp_path / f"{part}.csv").write_text(text)
        command = [sys.executable, "-m", "edl_horovod", "prepare", "-q", *zoo, "processes=1"]
        command += [f"data={tmp_path}/{part}.csv", f"output={tmp_path}/{part}"]
        subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    model = tmp_path / "model"
    job = start(
        "train",
        *zoo,
        f"data={tmp_path}/train",
        f"output={model}",
        "launch.np=2",
        "train.batch_size=4",
        "train.epochs=3",
        "params.label=salary",
    ).succeed()
    messages = [e.event.message for e in job.events("log") if e.event.message.startswith("column ")]
    assert messages == [
        "column age: numbers, mean 42.6667, deviation 8.73053; 1 empty, which count as 42.6667",
        "column name: texts, 3 values (row 1 has 'Ann'); 1 empty, which count as an empty text",
        "column rooms: numbers, mean 2.33333, deviation 1.24722; 1 empty, which count as 2.33333",
        "column salary: numbers, mean 4.5, deviation 0.790569",
        "column zip: texts, 4 values (row 3 has 'D-1')",
    ]
    assert (model / "adapted.json").exists()
    start("predict", f"trained_model={model}", f"data={tmp_path}/new").succeed()
    with Reader.open(str(tmp_path / "out")) as reader:
        assert len(reader) == 2


@pytest.mark.further
@NEEDS_KERAS
def test_dropout_sleeps_at_prediction(start, records, tmp_path):
    folder = records("digits", "mnist_subclass")
    model = tmp_path / "model"
    start(
        "train",
        f"model_zoo={ZOO}",
        "model_def=mnist_subclass",
        f"data={folder}/train",
        f"output={model}",
        "params.dropout=0.9",
        "train.max_steps=3",
        "launch.np=1",
    ).succeed()
    outputs = []
    for name in ("once", "again"):
        output = tmp_path / f"{name}.recordio"
        start(
            "predict", f"trained_model={model}", f"data={folder}/test", f"output={output}"
        ).succeed()
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1]
