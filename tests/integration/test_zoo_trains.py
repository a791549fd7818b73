"""The models of the zoo on real pictures, from PNG files to a trained model (F2, F3, F23)."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "model_zoo"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Prepared records by kind of picture: folder with train/ and test/."""
    made = {}

    def make(kind, model_def):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            maker = [sys.executable, str(ZOO / "sample_images.py"), kind, str(folder / "images")]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
            for part in ("train", "test"):
                prepare = [sys.executable, "-m", "edl_horovod", "prepare", "-q"]
                prepare += [f"model_zoo={ZOO}", f"model_def={model_def}", "records_per_shard=512"]
                prepare += [f"data={folder}/images/{part}", f"output={folder}/{part}"]
                subprocess.run(prepare, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
            made[kind] = folder
        return made[kind]

    return make


@pytest.mark.parametrize("model_def", ["mnist_functional_api", "mnist_subclass"])
def test_digits(start, records, model_def):
    folder = records("digits", model_def)
    job = start(
        "train", f"model_zoo={ZOO}", f"model_def={model_def}", f"data={folder}/train",
        f"validation_data={folder}/test", "launch.np=2", "train.batch_size=64", "train.epochs=5",
    ).succeed()  # fmt: skip
    assert job.events("evaluation")[-1]["metrics"]["accuracy"] >= 0.95


@pytest.mark.parametrize("model_def", ["cifar10_functional_api", "cifar10_subclass"])
def test_patches_of_photographs(start, records, model_def):
    folder = records("patches", model_def)
    job = start(
        "train", f"model_zoo={ZOO}", f"model_def={model_def}", f"data={folder}/train",
        f"validation_data={folder}/test", "launch.np=2", "train.batch_size=32",
        "train.max_steps=20", "train.epochs=20",
    ).succeed()  # fmt: skip
    steps = job.events("step")
    assert steps[-1]["step"] == 20
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_dropout_sleeps_at_prediction(start, records, tmp_path):
    folder = records("digits", "mnist_subclass")
    model = tmp_path / "model"
    start(
        "train", f"model_zoo={ZOO}", "model_def=mnist_subclass", f"data={folder}/train",
        f"output={model}", "params.dropout=0.9", "train.max_steps=3", "launch.np=1",
    ).succeed()  # fmt: skip
    outputs = []
    for name in ("once", "again"):
        output = tmp_path / f"{name}.recordio"
        start(
            "predict", f"trained_model={model}", f"data={folder}/test", f"output={output}",
        ).succeed()  # fmt: skip
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1]
