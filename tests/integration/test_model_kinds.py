"""Models of the other kinds than a spec, from training to prediction (F10, F11, F17, F18, F53)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config import resolved
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from edl_horovod.records.reader import Reader
from tests.frameworks import NEEDS_KERAS, NEEDS_TORCH
from tests.integration.conftest import ZOO
from tests.records import write_records

NUM_RECORDS = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("data"), NUM_RECORDS)


def train(start, data, *settings, **variables):
    common = (f"data={data}", "train.batch_size=16", "train.epochs=4")
    return start("train", *common, *settings, **variables)


def losses(job):
    return [recorded.event.loss for recorded in job.succeed().events("step")]


@pytest.mark.long
@NEEDS_KERAS
def test_a_keras_class_learns_on_two_ranks(start, data):
    job = train(
        start,
        data,
        "model_def=keras_tiny.TinyRegressor",
        "params=hidden_units=[6, 5]",
        "launch.np=2",
        f"validation_data={data}",
    )
    values = losses(job)
    assert values[-1] < 0.5 * values[0]
    assert job.events("evaluation")[-1].event.metrics["loss"] < 0.5 * values[0]


@pytest.mark.further
def test_a_released_module_learns_and_is_evaluated_and_predicts(start, data, tmp_path):
    job = train(start, data, "model_def=released_tiny", "launch.np=2", f"validation_data={data}")
    values = losses(job)
    assert values[-1] < 0.5 * values[0]
    trained = job.events("evaluation")[-1].event.metrics
    model = (tmp_path / "out").rename(tmp_path / "model")

    again = start("evaluate", f"trained_model={model}", f"data={data}").succeed()
    metrics = again.events("job")[-1].event.metrics
    np.testing.assert_allclose(metrics["mse"], metrics["loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["rmse"], np.sqrt(metrics["loss"]), rtol=1e-5)
    np.testing.assert_allclose(metrics["r2"], trained["r2"], rtol=1e-5)
    np.testing.assert_allclose(metrics["is_close"], trained["is_close"], atol=0.01)
    start("predict", f"trained_model={model}", f"data={data}", "launch.np=2").succeed()
    with Reader.open(str(tmp_path / "out")) as reader:
        assert len(reader) == NUM_RECORDS


@pytest.mark.further
@NEEDS_TORCH
def test_a_pytorch_module_learns_and_is_evaluated_and_predicts(start, tmp_path):
    held_out = "data=dataset:torch_modules.held_out"
    job = start(
        "train",
        "model_def=torch_modules.Regression",
        "data=dataset:torch_modules.Points",
        f"validation_{held_out}",
        "train.batch_size=16",
        "train.epochs=20",
        "launch.np=2",
    )
    values = losses(job)
    assert values[-1] < 0.5 * values[0]
    trained = job.events("evaluation")[-1].event.metrics
    model = (tmp_path / "out").rename(tmp_path / "model")

    again = start("evaluate", f"trained_model={model}", held_out, "launch.np=2").succeed()
    assert again.events("job")[-1].event.metrics == pytest.approx(trained, rel=1e-5)
    start("predict", f"trained_model={model}", held_out, "launch.np=2").succeed()
    with Reader.open(str(tmp_path / "out")) as reader:
        assert len(reader) == 32


@pytest.mark.long
@NEEDS_KERAS
@NEEDS_TORCH
def test_a_setting_that_does_not_fit_the_model_is_named(start, data):
    job = train(start, data, "model_def=torch_tiny", "framework=keras")
    assert job.end() == 3, job.describe()
    message = job.events("job")[-1].event.message
    assert "imports torch" in message
    assert "framework=torch" in message


@pytest.mark.further
def test_a_zoo_of_one_file_trains_and_travels_alone(start, data, tmp_path):
    zoo = tmp_path / "home" / "mine.py"
    zoo.parent.mkdir()
    shutil.copyfile(ZOO / "keras_tiny.py", zoo)
    zoo.with_name("private.txt").write_text("not part of it")
    losses(train(start, data, f"model_zoo={zoo}"))
    model = (tmp_path / "out").rename(tmp_path / "model")
    shutil.rmtree(zoo.parent)

    assert [file.name for file in (model / "zoo").iterdir()] == ["mine.py"]
    start("predict", f"trained_model={model}", f"data={data}").succeed()
    with Reader.open(str(tmp_path / "out")) as reader:
        assert len(reader) == NUM_RECORDS


@pytest.mark.further
def test_overrides_change_the_training_and_travel(start, data, tmp_path):
    base = losses(train(start, data, "model_def=keras_tiny", "train.max_steps=2", "overwrite=true"))
    job = train(
        start,
        data,
        "model_def=keras_tiny",
        "train.max_steps=2",
        "overwrite=true",
        "loss=hundred_times_mse",
        "optimizer=keras_tiny.slow",
        "input_fn=zero_labels",
    )
    assert losses(job)[0] != pytest.approx(base[0])
    model = (tmp_path / "out").rename(tmp_path / "model")
    message = TrainedModel.FromString((model / "trained_model.pb").read_bytes())
    assert (message.input_function, message.loss, message.optimizer) == (
        "keras_tiny.zero_labels",
        "keras_tiny.hundred_times_mse",
        "keras_tiny.slow",
    )

    metrics = start("evaluate", f"trained_model={model}", f"data={data}").succeed()
    outputs = tmp_path / "outputs.recordio"
    start("predict", f"trained_model={model}", f"data={data}", f"output={outputs}").succeed()
    squares = np.mean([output**2 for output in read_outputs(outputs)])
    # The labels of zero_labels and the loss that the trained model carries.
    assert metrics.events("job")[-1].event.metrics["loss"] == pytest.approx(100 * squares, rel=1e-3)


def read_outputs(path):
    """The outputs of a prediction, parsed in a process of its own: TensorFlow is not for this."""
    with Reader.open(str(path)) as reader:
        records = [record.hex() for record in reader]
    code = (
        "import sys, json, tensorflow as tf\n"
        "records = [bytes.fromhex(line) for line in json.load(sys.stdin)]\n"
        "spec = {'output': tf.io.FixedLenFeature([1], tf.float32)}\n"
        "print(json.dumps(tf.io.parse_example(records, spec)['output'].numpy().ravel().tolist()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(records),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.long
@NEEDS_KERAS
def test_a_zoo_in_git_is_fetched_once_and_its_commit_recorded(start, data, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(ZOO, repository / "zoo")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "zoo"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    url = f"git+file://{repository}@main#subdirectory=zoo"
    cache = tmp_path / "cache"
    train(
        start,
        data,
        f"model_zoo={url}",
        "model_def=tiny",
        "train.max_steps=2",
        XDG_CACHE_HOME=str(cache),
    ).succeed()

    config = resolved.load(tmp_path / "out" / "config.yaml")
    assert (config.model_zoo_source, config.model_zoo_commit) == (url, commit)
    assert Path(config.model_zoo).is_relative_to(cache)
